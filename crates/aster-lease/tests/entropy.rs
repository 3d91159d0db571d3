//! Where randomness comes in: what is made of it, and what happens without it.

use std::collections::BTreeSet;

use aster_lease::entropy::{authority, grant_id, jitter, write_id};
use aster_lease::{Entropy, EntropyError, ErrorKind, SystemEntropy};

/// The same byte over and over, or nothing.
struct Fixed(Option<u8>);

impl Entropy for Fixed {
    fn fill(&self, bytes: &mut [u8]) -> Result<(), EntropyError> {
        let message = "no random bytes".to_owned();
        bytes.fill(self.0.ok_or(EntropyError { message })?);
        Ok(())
    }
}

#[test]
fn ids_are_the_bytes_of_their_source_and_none_is_made_without_one() {
    let source = Fixed(Some(7));
    assert_eq!(grant_id(&source).unwrap().as_bytes(), &[7; 16]);
    assert_eq!(write_id(&source).unwrap().as_bytes(), &[7; 16]);
    assert_eq!(authority(&source).unwrap().as_bytes(), &[7; 16]);
    let error = grant_id(&Fixed(None)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Report);
    assert!(write_id(&Fixed(None)).is_err() && authority(&Fixed(None)).is_err());
}

/// An id that comes twice is taken for a retry.
#[test]
fn the_systems_ids_differ() {
    let ids: BTreeSet<_> = (0..1_000)
        .map(|_| grant_id(&SystemEntropy).unwrap())
        .collect();
    assert_eq!(ids.len(), 1_000);
}

/// Many clients must not act at the same instant, and none later than it was told to.
#[test]
fn a_jitter_leaves_a_part_to_chance_and_only_that() {
    for (source, spread, factor) in [
        (Fixed(Some(0)), 0.5, 1.0),
        (Fixed(Some(0xff)), 0.5, 0.5),
        (Fixed(Some(0xff)), 0.1, 0.9),
        // Without randomness only the spreading is lost.
        (Fixed(None), 0.5, 1.0),
    ] {
        let shown = jitter(&source, spread);
        assert!((shown - factor).abs() < 1e-9, "{shown} for {factor}");
    }
    let many: Vec<f64> = (0..1_000).map(|_| jitter(&SystemEntropy, 0.5)).collect();
    assert!(many.iter().all(|factor| (0.5..=1.0).contains(factor)));
    let low = many.iter().filter(|factor| **factor < 0.75).count();
    assert!((350..650).contains(&low), "{low} of 1000 in the lower half");
}
