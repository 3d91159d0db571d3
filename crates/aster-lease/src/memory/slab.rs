//! Values at numbers that stay the same while they are kept.

/// How many values one allocation holds: what is allocated and unused is at most this many.
const CHUNK: usize = 512;

/// The number of a value in a [`Slab`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Id(u32);

/// Grows by whole chunks, so that no large allocation is half empty; only the first chunk starts small,
/// for stores that stay small.
pub(super) struct Slab<T> {
    chunks: Vec<Vec<Option<T>>>,
    vacant: Vec<Id>,
}

impl Id {
    pub(super) fn number(self) -> u32 {
        self.0
    }
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self {
            chunks: Vec::new(),
            vacant: Vec::new(),
        }
    }
}

impl<T> Slab<T> {
    pub(super) fn insert(&mut self, value: T) -> Id {
        if let Some(id) = self.vacant.pop()
            && let Some(place) = self.place(id)
        {
            *place = Some(value);
            return id;
        }
        let is_full = self.chunks.last().is_none_or(|chunk| chunk.len() == CHUNK);
        if is_full {
            let capacity = if self.chunks.is_empty() { 0 } else { CHUNK };
            self.chunks.push(Vec::with_capacity(capacity));
        }
        let before = (self.chunks.len() - 1) * CHUNK;
        let last = before + self.chunks.last().map_or(0, Vec::len);
        if let Some(chunk) = self.chunks.last_mut() {
            chunk.push(Some(value));
        }
        // 2^32 rows behind one lock would take hundreds of gigabytes.
        Id(u32::try_from(last).unwrap_or(u32::MAX))
    }

    pub(super) fn remove(&mut self, id: Id) -> Option<T> {
        let value = self.place(id)?.take()?;
        self.vacant.push(id);
        Some(value)
    }

    pub(super) fn get(&self, id: Id) -> Option<&T> {
        let at = id.0 as usize;
        self.chunks.get(at / CHUNK)?.get(at % CHUNK)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, id: Id) -> Option<&mut T> {
        self.place(id)?.as_mut()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.chunks.iter().flatten().flatten()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.chunks.iter_mut().flatten().flatten()
    }

    fn place(&mut self, id: Id) -> Option<&mut Option<T>> {
        let at = id.0 as usize;
        self.chunks.get_mut(at / CHUNK)?.get_mut(at % CHUNK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_and_are_used_again_after_a_removal() {
        let mut slab = Slab::default();
        let ids: Vec<_> = (0..1_000).map(|number| slab.insert(number)).collect();
        assert!(
            ids.iter()
                .enumerate()
                .all(|(number, id)| slab.get(*id) == Some(&number))
        );
        for id in ids.iter().step_by(2) {
            assert!(slab.remove(*id).is_some());
            assert!(slab.remove(*id).is_none() && slab.get(*id).is_none());
        }
        assert_eq!(slab.iter().count(), 500);
        let again: Vec<_> = (0..500).map(|number| slab.insert(number)).collect();
        assert!(again.iter().all(|id| ids.contains(id)), "no new places");
        assert_eq!(slab.chunks.len(), 1_000_usize.div_ceil(CHUNK));
    }
}
