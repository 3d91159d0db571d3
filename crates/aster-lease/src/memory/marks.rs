//! A row's instant and its three flags in one word: there may be millions of them.

use std::time::Duration;

/// The instant of the row's last grant, renewal or end in nanoseconds of the store's clock, above
/// [`FLAG_BITS`] flags. It reaches for seventy years.
#[derive(Default)]
pub(super) struct Marks(u64);

const FLAG_BITS: u32 = 3;
const FLAGS: u64 = (1 << FLAG_BITS) - 1;
const NANOS_MAX: u64 = u64::MAX >> FLAG_BITS;

#[derive(Clone, Copy)]
#[repr(u64)]
pub(super) enum Flag {
    /// A closure runs that has no place on the board.
    GateClosed = 1,
    /// Someone waits for that closure.
    Contended = 2,
    /// The list of idle rows names this one.
    IdleQueued = 4,
}

impl Marks {
    pub(super) fn since(&self) -> Duration {
        Duration::from_nanos(self.0 >> FLAG_BITS)
    }

    pub(super) fn set_since(&mut self, now: Duration) {
        let nanos = u64::try_from(now.as_nanos()).unwrap_or(NANOS_MAX);
        self.0 = nanos.min(NANOS_MAX) << FLAG_BITS | self.0 & FLAGS;
    }

    pub(super) fn has(&self, flag: Flag) -> bool {
        self.0 & flag as u64 != 0
    }

    pub(super) fn set(&mut self, flag: Flag) {
        self.0 |= flag as u64;
    }

    /// Takes the flag away; whether it was there.
    pub(super) fn take(&mut self, flag: Flag) -> bool {
        let had = self.has(flag);
        self.0 &= !(flag as u64);
        had
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_instant_and_the_flags_do_not_touch_each_other() {
        let mut marks = Marks::default();
        let flags = [Flag::GateClosed, Flag::Contended, Flag::IdleQueued];
        for (number, flag) in flags.into_iter().enumerate() {
            let since = Duration::new(60 * 60 * 24 * 365 * 70, 999_999_999 - number as u32);
            marks.set_since(since);
            assert!(!marks.has(flag));
            marks.set(flag);
            assert_eq!((marks.since(), marks.has(flag)), (since, true));
            marks.set_since(Duration::ZERO);
            assert!(marks.has(flag));
        }
        assert!(
            flags
                .into_iter()
                .all(|flag| marks.take(flag) && !marks.take(flag))
        );
        marks.set_since(Duration::MAX);
        assert!(marks.since() > Duration::from_secs(60 * 60 * 24 * 365 * 70));
        assert!(flags.into_iter().all(|flag| !marks.has(flag)));
    }
}
