//! Job control: the command's group is the terminal's foreground while it runs.

use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;

use nix::sys::signal::{SigSet, SigmaskHow, Signal as StopSignal, raise};
use rustix::process::{Pid, Signal, getpgrp};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

use super::group::Group;

/// The terminal on standard input, if we were its foreground when we started.
#[derive(Debug)]
pub(crate) struct Terminal {
    own_group: Pid,
}

impl Terminal {
    /// `None` when stdin is no terminal or we run in its background: then it is not ours to give.
    pub(crate) fn of_foreground() -> Option<Self> {
        let terminal = Self {
            own_group: getpgrp(),
        };
        let is_ours = io::stdin().is_terminal() && terminal.is_of(terminal.own_group);
        is_ours.then_some(terminal)
    }

    /// In `run … | less` the terminal stays with `less`, until the command asks for it.
    pub(crate) fn give_unless_in_a_pipeline(&self, group: &Group) {
        let is_pipeline = io::stdout()
            .as_fd()
            .try_clone_to_owned()
            .and_then(|stdout| File::from(stdout).metadata())
            .is_ok_and(|metadata| metadata.file_type().is_fifo());
        if !is_pipeline {
            set_foreground(group.id());
        }
    }

    pub(crate) fn take_back(&self, group: &Group) {
        if self.is_of(group.id()) {
            set_foreground(self.own_group);
        }
    }

    /// The command was stopped by `signal`. Returns when it goes on.
    pub(crate) fn command_was_stopped(&self, group: &Group, signal: i32) {
        let wants_terminal = signal == Signal::TTIN.as_raw() || signal == Signal::TTOU.as_raw();
        if !(wants_terminal && self.is_of(self.own_group)) {
            // The user stopped the job, and we are part of it. Renewals stop too; if that lasts, the guard
            // kills the group when the lease's time is over.
            self.take_back(group);
            if let Err(error) = raise(StopSignal::SIGSTOP) {
                tracing::warn!(%error, "cannot stop");
            }
        }
        if self.is_of(self.own_group) {
            set_foreground(group.id());
        }
        group.signal(Signal::CONT);
    }

    fn is_of(&self, group: Pid) -> bool {
        tcgetpgrp(io::stdin()).is_ok_and(|foreground| foreground == group)
    }
}

/// A background process that does this is stopped by TTOU, unless it blocks that signal.
fn set_foreground(group: Pid) {
    let mut background_write = SigSet::empty();
    background_write.add(StopSignal::SIGTTOU);
    let before = background_write.thread_swap_mask(SigmaskHow::SIG_BLOCK);
    if let Err(error) = tcsetpgrp(io::stdin(), group) {
        tracing::debug!(%error, "cannot set the terminal's foreground");
    }
    if let Ok(before) = before {
        let _ = before.thread_set_mask();
    }
}
