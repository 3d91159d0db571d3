//! Writes the engine's sources with its locks exchanged and the bugs of the controls planted.

fn main() {
    aster_exchange::build(aster_exchange::PLANTS);
}
