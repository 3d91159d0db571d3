//! The one source of chance. Everything that happens follows from its seed.

use std::sync::{Mutex, PoisonError};

use aster_core::GrantId;
use aster_lease::{Entropy, EntropyError};

/// A stream of choices that is the same on every machine.
#[derive(Debug, Clone)]
pub struct Random(aster_evidence::Random);

impl Random {
    /// A generator that follows from `seed` alone.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(aster_evidence::Random::new(seed))
    }

    /// A generator of its own for one part of the world, so that what one part draws does not shift
    /// what the others draw.
    pub(crate) fn fork(&mut self) -> Self {
        Self::new(self.draw())
    }

    pub(crate) fn draw(&mut self) -> u64 {
        self.0.bits()
    }

    /// From 0 up to `bound`, which is above 0 and not reached.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0.below(bound)
    }

    /// From `low` to `high`, both included.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        self.0.between(low, high)
    }

    pub(crate) fn chance(&mut self, per_mille: u64) -> bool {
        self.0.chance(per_mille, 1_000)
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
