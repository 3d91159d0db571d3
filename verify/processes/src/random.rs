//! Chance that follows from a seed.

/// A small generator (splitmix64) that is the same on every machine.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    /// The stream `number` of `seed`, so that what one part draws does not shift what others draw.
    pub(crate) fn new(seed: u64, number: u64) -> Self {
        let mut seeds = Self(seed);
        let first = seeds.draw();
        Self(first ^ number.wrapping_mul(0xd6e8_feb8_6659_fd93))
    }

    pub(crate) fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From `low` to `high`, both included.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.draw() % (high.saturating_sub(low) + 1)
    }

    pub(crate) fn percent(&mut self, chance: u64) -> bool {
        self.draw() % 100 < chance
    }
}
