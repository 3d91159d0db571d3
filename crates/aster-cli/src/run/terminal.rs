//! Job control: the command's group is the terminal's foreground while it runs.

use std::io::{self, IsTerminal};

use nix::sys::signal::{SigSet, Signal as NixSignal};
use rustix::process::{Pid, Signal, getpgrp, getpid, kill_process};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

/// The terminal on standard input, if we were its foreground when we started.
#[derive(Debug)]
pub(crate) struct Terminal {
    own_group: Pid,
}

impl Terminal {
    /// `None` when stdin is no terminal or we run in its background: then it is not ours to give.
    pub(crate) fn of_foreground() -> Option<Self> {
        let stdin = io::stdin();
        let own_group = getpgrp();
        let is_ours =
            stdin.is_terminal() && tcgetpgrp(&stdin).is_ok_and(|group| group == own_group);
        is_ours.then_some(Self { own_group })
    }

    pub(crate) fn give_to(&self, group: Pid) {
        set_foreground(group);
    }

    pub(crate) fn take_back(&self) {
        set_foreground(self.own_group);
    }

    /// Stops ourselves like a job that the user stopped. Returns when the user continues us, and says
    /// whether in the foreground.
    pub(crate) fn stop_with_the_command(&self) -> bool {
        self.take_back();
        if let Err(error) = kill_process(getpid(), Signal::STOP) {
            tracing::warn!(%error, "cannot stop");
        }
        tcgetpgrp(io::stdin()).is_ok_and(|group| group == self.own_group)
    }
}

/// A background process that does this is stopped by TTOU, unless it blocks that signal.
fn set_foreground(group: Pid) {
    let mut background_write = SigSet::empty();
    background_write.add(NixSignal::SIGTTOU);
    let before = background_write.thread_swap_mask(nix::sys::signal::SigmaskHow::SIG_BLOCK);
    if let Err(error) = tcsetpgrp(io::stdin(), group) {
        tracing::debug!(%error, "cannot set the terminal's foreground");
    }
    if let Ok(before) = before {
        let _ = before.thread_set_mask();
    }
}
