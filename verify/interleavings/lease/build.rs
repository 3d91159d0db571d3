//! Writes the engine's sources with its locks exchanged.

fn main() -> Result<(), aster_exchange::ExchangeError> {
    aster_exchange::write(&[])
}
