//! One text for each holder, however many rows it holds and however many requests named it.

use aster_core::Principal;
use hashbrown::HashTable;

use super::{Hasher, hash_of};

/// The holders of the rows of one lock, each with the number of rows that it holds.
#[derive(Default)]
pub(super) struct Holders {
    held: HashTable<(Principal, usize)>,
}

impl Holders {
    /// The text to share, if the holder has a row already.
    pub(super) fn known(&self, hasher: &Hasher, holder: &Principal) -> Option<Principal> {
        let hash = hash_of(hasher, holder);
        let known = self.held.find(hash, |(known, _)| known == holder);
        known.map(|(known, _)| known.clone())
    }

    /// One row more.
    pub(super) fn add(&mut self, hasher: &Hasher, holder: &Principal) {
        let hash = hash_of(hasher, holder);
        match self.held.find_mut(hash, |(known, _)| known == holder) {
            Some((_, rows)) => *rows += 1,
            None => {
                let entry = (holder.clone(), 1);
                let rehash = |(known, _): &(Principal, usize)| hash_of(hasher, known);
                self.held.insert_unique(hash, entry, rehash);
            }
        }
    }

    /// One row less; the last one takes the text with it.
    pub(super) fn remove(&mut self, hasher: &Hasher, holder: &Principal) {
        let hash = hash_of(hasher, holder);
        let found = self.held.find_entry(hash, |(known, _)| known == holder);
        if let Ok(mut entry) = found {
            let (_, rows) = entry.get_mut();
            *rows -= 1;
            if *rows == 0 {
                entry.remove();
            }
        }
    }
}

#[cfg(test)]
impl Holders {
    pub(super) fn len(&self) -> usize {
        self.held.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_shared_while_a_row_is_held_and_goes_with_the_last_one() {
        let hasher = Hasher::new(&crate::SystemEntropy).unwrap();
        let fresh = || Principal::new("worker-a").unwrap();
        let mut holders = Holders::default();
        assert_eq!(holders.known(&hasher, &fresh()), None);
        let first = fresh();
        holders.add(&hasher, &first);
        for _ in 0..9 {
            let known = holders.known(&hasher, &fresh()).unwrap();
            assert!(std::ptr::eq(known.as_str(), first.as_str()), "one text");
            holders.add(&hasher, &known);
        }
        for number in 0..1_000 {
            let other = Principal::new(format!("worker-{number}")).unwrap();
            holders.add(&hasher, &other);
            holders.remove(&hasher, &other);
        }
        for _ in 0..10 {
            assert!(holders.known(&hasher, &fresh()).is_some());
            holders.remove(&hasher, &fresh());
        }
        assert!(holders.held.is_empty());
    }
}
