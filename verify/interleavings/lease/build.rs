//! Writes the engine's sources with its locks exchanged.

fn main() {
    aster_exchange::build(&[]);
}
