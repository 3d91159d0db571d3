//! Where randomness comes in.

use aster_core::{Authority, ErrorKind, GrantId, WriteId};

/// A source of random bytes. Implement it to make a test or a simulation repeatable.
pub trait Entropy: Send + Sync + 'static {
    /// Fills `bytes`.
    ///
    /// # Errors
    ///
    /// [`EntropyError`] when the source fails; `bytes` must then not be used.
    fn fill(&self, bytes: &mut [u8]) -> Result<(), EntropyError>;
}

/// The operating system has no random bytes to give.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no random bytes from the operating system: {message}")]
pub struct EntropyError {
    /// What it said.
    pub message: String,
}

impl EntropyError {
    /// Always [`ErrorKind::Report`].
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        ErrorKind::Report
    }
}

/// The operating system's random bytes.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemEntropy;

impl Entropy for SystemEntropy {
    #[allow(
        clippy::disallowed_methods,
        reason = "this is where randomness comes in"
    )]
    fn fill(&self, bytes: &mut [u8]) -> Result<(), EntropyError> {
        getrandom::fill(bytes).map_err(|error| EntropyError {
            message: error.to_string(),
        })
    }
}

fn sixteen(entropy: &dyn Entropy) -> Result<[u8; 16], EntropyError> {
    let mut bytes = [0; 16];
    entropy.fill(&mut bytes)?;
    Ok(bytes)
}

/// A fresh grant id.
///
/// # Errors
///
/// [`EntropyError`] from the source.
pub fn grant_id(entropy: &dyn Entropy) -> Result<GrantId, EntropyError> {
    sixteen(entropy).map(GrantId::from_bytes)
}

/// A fresh write id.
///
/// # Errors
///
/// [`EntropyError`] from the source.
pub fn write_id(entropy: &dyn Entropy) -> Result<WriteId, EntropyError> {
    sixteen(entropy).map(WriteId::from_bytes)
}

/// A fresh authority.
///
/// # Errors
///
/// [`EntropyError`] from the source.
pub fn authority(entropy: &dyn Entropy) -> Result<Authority, EntropyError> {
    sixteen(entropy).map(Authority::from_bytes)
}

/// A seed that nobody outside can guess.
pub(crate) fn seed(entropy: &dyn Entropy) -> Result<u64, EntropyError> {
    let mut bytes = [0; 8];
    entropy.fill(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// A factor between `1 - spread` and `1`, to keep many clients from acting at the same instant. A
/// source that fails costs only the spreading.
#[must_use]
pub fn jitter(entropy: &dyn Entropy, spread: f64) -> f64 {
    let mut bytes = [0; 4];
    match entropy.fill(&mut bytes) {
        Ok(()) => 1.0 - spread * f64::from(u32::from_le_bytes(bytes)) / f64::from(u32::MAX),
        Err(_) => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Counting(std::sync::atomic::AtomicU8);

    impl Entropy for Counting {
        fn fill(&self, bytes: &mut [u8]) -> Result<(), EntropyError> {
            let next = self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            bytes.fill(next);
            Ok(())
        }
    }

    /// Where names go in a store's table must not be known to whoever chooses the names.
    #[test]
    fn every_seed_is_what_its_source_gave() {
        let source = Counting(std::sync::atomic::AtomicU8::new(1));
        let seeds = [seed(&source), seed(&source)].map(Result::unwrap);
        assert_eq!(seeds, [0x0101_0101_0101_0101, 0x0202_0202_0202_0202]);
    }
}
