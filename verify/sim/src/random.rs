//! The one source of chance. Everything that happens follows from its seed.

use std::sync::{Mutex, PoisonError};

use aster_core::GrantId;
use aster_lease::{Entropy, EntropyError};

/// A small generator (splitmix64) that is the same on every machine.
#[derive(Debug, Clone)]
pub struct Random {
    state: u64,
}

impl Random {
    /// A generator that follows from `seed` alone.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// A generator of its own for one part of the world, so that what one part draws does not shift
    /// what the others draw.
    pub(crate) fn fork(&mut self) -> Self {
        Self::new(self.draw())
    }

    pub(crate) fn draw(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From 0 up to `bound`, which is above 0 and not reached.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        // The bias of the remainder is of no account for bounds this small.
        self.draw() % bound.max(1)
    }

    /// From `low` to `high`, both included.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low) + 1)
    }

    pub(crate) fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1_000) < per_mille
    }

    pub(crate) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        let at = self.below(choices.len() as u64);
        choices[usize::try_from(at).unwrap_or(0)]
    }
}

impl Random {
    pub(crate) fn grant_id(&mut self) -> GrantId {
        let mut bytes = [0; 16];
        self.fill(&mut bytes);
        GrantId::from_bytes(bytes)
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        for part in bytes.chunks_mut(8) {
            let drawn = self.draw().to_le_bytes();
            part.copy_from_slice(&drawn[..part.len()]);
        }
    }
}

/// The randomness of one machine.
#[derive(Debug)]
pub(crate) struct SeededEntropy(Mutex<Random>);

impl SeededEntropy {
    pub(crate) fn new(random: Random) -> Self {
        Self(Mutex::new(random))
    }
}

impl Entropy for SeededEntropy {
    fn fill(&self, bytes: &mut [u8]) -> Result<(), EntropyError> {
        let mut random = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        random.fill(bytes);
        Ok(())
    }
}
