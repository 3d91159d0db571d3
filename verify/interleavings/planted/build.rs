//! Writes the engine's sources with its locks exchanged and the bugs of the controls planted.

fn main() -> Result<(), aster_exchange::ExchangeError> {
    aster_exchange::write(aster_exchange::PLANTS)
}
