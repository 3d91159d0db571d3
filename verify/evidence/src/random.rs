//! Choices that a seed repeats.

/// A stream of numbers (splitmix64) that follows from its seed alone, the same on every machine: good enough
/// to choose faults and steps by, and for nothing secret.
///
/// ```
/// use aster_evidence::Random;
///
/// let (mut one, mut other) = (Random::new(7), Random::new(7));
/// assert_eq!(one.bits(), other.bits());
/// assert!(one.below(10) < 10);
/// assert!((3..=5).contains(&one.between(3, 5)));
/// assert_ne!(Random::stream(7, 0).bits(), Random::stream(7, 1).bits());
/// ```
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The stream of `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The stream `number` of `seed`, so that what one part draws does not shift what others draw.
    #[must_use]
    pub fn stream(seed: u64, number: u64) -> Self {
        let first = Self(seed).bits();
        Self(first ^ number.wrapping_mul(0xd6e8_feb8_6659_fd93))
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`; 0 when that is 0. The bias of the remainder is of no account for bounds that
    /// are small.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.bits() % bound.max(1)
    }

    /// From `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// True `times` out of `of` times.
    pub fn chance(&mut self, times: u64, of: u64) -> bool {
        self.below(of) < times
    }
}
