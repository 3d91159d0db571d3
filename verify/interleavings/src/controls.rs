//! The planted bug that each scenario must find.

use crate::explore::Scenario;
use crate::planted::scenarios::ALL;

/// A bug, and the scenario that must find it.
#[derive(Debug, Clone, Copy)]
pub struct Control {
    /// The bug's name in `exchange/src/plants.rs`.
    pub bug: &'static str,
    /// What the bug does.
    pub planted: &'static str,
    /// The scenario's name.
    pub scenario: &'static str,
}

impl Control {
    /// The scenario over the engine with the bugs; `None` if it does not exist.
    #[must_use]
    pub fn scenario(&self) -> Option<Scenario> {
        ALL.iter()
            .find(|scenario| scenario.name == self.scenario)
            .copied()
    }
}

/// All controls.
pub const CONTROLS: &[Control] = &[
    Control {
        bug: "check-before-the-lock-is-kept",
        planted: "the lock is given back between the fence's check and the closing of the gate",
        scenario: "release-waits-for-the-closure",
    },
    Control {
        bug: "check-from-before-the-wait",
        planted: "a write that has waited for a closure goes by the check before its wait",
        scenario: "a-write-that-waited",
    },
    Control {
        bug: "gate-opened-without-a-word",
        planted: "whoever opens a gate tells nobody",
        scenario: "closures-exclude",
    },
    Control {
        bug: "gate-waited-for-without-a-note",
        planted: "whoever waits for a gate leaves no note there",
        scenario: "closures-exclude",
    },
    Control {
        bug: "waits-after-the-lock-is-given-back",
        planted: "a task begins to wait for the gate after it has given the lock back",
        scenario: "release-waits-for-the-closure",
    },
    Control {
        bug: "gate-closed-twice",
        planted: "a gate that is closed is closed once more",
        scenario: "closures-exclude",
    },
    Control {
        bug: "handed-over-without-a-ring",
        planted: "a waiter is granted the row, and its bell stays silent",
        scenario: "hand-over",
    },
    Control {
        bug: "grant-kept-by-one-who-left",
        planted: "whoever leaves the queue keeps the grant that it has not seen",
        scenario: "waiter-dropped-while-granted",
    },
    Control {
        bug: "cancelled-after-the-hand-over",
        planted: "a cancel ends a grant and leaves the wish in the queue",
        scenario: "wish-cancelled-while-granted",
    },
    Control {
        bug: "next-is-not-told-that-it-is-first",
        planted: "the first waiter leaves, and the next one does not watch the expiry",
        scenario: "expiry-is-watched",
    },
    Control {
        bug: "opening-rings-no-seat",
        planted: "the end of a closure rings nobody who waits for the row",
        scenario: "closure-outlives-the-ttl",
    },
    Control {
        bug: "closure-forgotten-at-the-hand-over",
        planted: "a row is handed over under a closure that runs",
        scenario: "closure-outlives-the-ttl",
    },
    Control {
        bug: "restart-rings-nobody",
        planted: "a restart empties the queue, and the bells stay silent",
        scenario: "restart-while-waiting",
    },
    Control {
        bug: "replaced-without-a-word",
        planted: "a place changes hands, and who had it is not told",
        scenario: "wish-asked-twice",
    },
    Control {
        bug: "place-taken-twice",
        planted: "the same wish takes a second place",
        scenario: "wish-asked-twice",
    },
    Control {
        bug: "floor-forgotten",
        planted: "a row is dropped, and the floor does not rise",
        scenario: "dropped-rows",
    },
    Control {
        bug: "change-marked-as-seen",
        planted: "a watcher marks as seen what came after it had looked",
        scenario: "watchers-see-the-present",
    },
    Control {
        bug: "watch-ended-before-its-reason",
        planted: "a watch is ended before its reason is there",
        scenario: "watch-tells-its-failure",
    },
    Control {
        bug: "register-written-under-a-closure",
        planted: "a register is written while a closure runs on its row",
        scenario: "registers-and-closures",
    },
    Control {
        bug: "value-kept-without-its-release",
        planted: "a value is written, and the release that belongs to it is not made",
        scenario: "registers-and-closures",
    },
    Control {
        bug: "held-row-dropped",
        planted: "a row that was free is dropped, although it is held again",
        scenario: "dropped-rows",
    },
    Control {
        bug: "task-ends-after-the-lock",
        planted: "the schedule's task notes its end after it has given the lock back",
        scenario: "join-while-the-last-leaves",
    },
    Control {
        bug: "answer-for-whoever-sits-there",
        planted: "the answer to a renewal is applied to whoever has the place by now",
        scenario: "place-taken-while-in-flight",
    },
    Control {
        bug: "leaves-for-another",
        planted: "who leaves a second time takes along whoever has the place by now",
        scenario: "leaves-twice",
    },
    Control {
        bug: "schedule-forgets-another",
        planted: "a schedule that lost the race takes the winner's entry along",
        scenario: "one-schedule",
    },
    Control {
        bug: "join-wakes-nobody",
        planted: "a lease that joins does not wake the task that sleeps past its time",
        scenario: "joins-a-sleeping-task",
    },
    Control {
        bug: "stranded-without-a-word",
        planted: "the task goes with its runtime, and the leases are not told",
        scenario: "runtime-stops",
    },
    Control {
        bug: "release-ends-later",
        planted: "a release leaves the fence usable until it is answered",
        scenario: "release-against-renewal",
    },
    Control {
        bug: "over-before-it-was-asked",
        planted: "a release says that it is over before the serializer was asked",
        scenario: "released-by-two",
    },
    Control {
        bug: "end-looked-at-before-the-lock",
        planted: "whether a lease has ended is looked at in another lock than it is ended in",
        scenario: "ends-once",
    },
    Control {
        bug: "told-before-it-has-ended",
        planted: "watchers are told before the lease has ended",
        scenario: "drop-against-everything",
    },
    Control {
        bug: "late-renewal-revives",
        planted: "what is found past the self-limit is not kept",
        scenario: "ended-is-final",
    },
    Control {
        bug: "guard-looks-before-it-is-busy",
        planted: "a guard looks at its lease before it counts as busy",
        scenario: "guard-against-release",
    },
    Control {
        bug: "guard-waits-to-be-told",
        planted: "a guard that knows of the end spins until it is told as well",
        scenario: "guard-against-release",
    },
    Control {
        bug: "guards-counted-before-listening",
        planted: "a release counts the guards before it listens for their changes",
        scenario: "guard-against-release",
    },
    Control {
        bug: "acquire-not-undone",
        planted: "nobody gives back what an acquire was granted that nobody waits for",
        scenario: "acquire-dropped",
    },
    Control {
        bug: "acquire-not-undone",
        planted: "nobody gives back a turn that was granted to a wait that was dropped",
        scenario: "engines-take-turns",
    },
    Control {
        bug: "counted-from-the-answer",
        planted: "a renewal is counted from its answer",
        scenario: "one-usable-fence",
    },
    Control {
        bug: "grant-counted-from-the-answer",
        planted: "a grant is counted from its answer",
        scenario: "one-usable-grant",
    },
    Control {
        bug: "answer-for-whoever-sits-there",
        planted: "the answers to a batch are applied to whoever has the places by now",
        scenario: "place-taken-while-a-batch-is-in-flight",
    },
    Control {
        bug: "audited-after-the-lock",
        planted: "changes are audited after the row's lock was given back",
        scenario: "hand-over",
    },
    Control {
        bug: "guard-is-not-told",
        planted: "a loss ends the lease, and those who wait for it are not told",
        scenario: "guard-against-loss",
    },
];
