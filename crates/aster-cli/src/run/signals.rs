//! Signals that are passed on to the command.

use std::fs;
use std::io;
use std::pin::Pin;
use std::task::Poll;

use rustix::process::Signal;
use tokio::signal::unix::{Signal as SignalStream, SignalKind, signal};

/// HUP, INT, QUIT and TERM ask the command to end; USR1 and USR2 mean whatever the command says.
const FORWARDED: [Signal; 6] = [
    Signal::HUP,
    Signal::INT,
    Signal::QUIT,
    Signal::TERM,
    Signal::USR1,
    Signal::USR2,
];

/// The signals that we listen to. One that was ignored when we started (`nohup`, a shell's background job)
/// stays ignored, by us and by the command.
pub(crate) struct ForwardedSignals {
    streams: Vec<(Signal, SignalStream)>,
}

impl ForwardedSignals {
    pub(crate) fn listen() -> io::Result<Self> {
        let ignored = ignored_signals();
        let mut streams = Vec::new();
        for forwarded in FORWARDED {
            let raw = forwarded.as_raw();
            if ignored & (1 << (raw - 1)) == 0 {
                streams.push((forwarded, signal(SignalKind::from_raw(raw))?));
            }
        }
        Ok(Self { streams })
    }

    /// The next one. Never resolves when all are ignored. Cancel safe.
    pub(crate) async fn next(&mut self) -> Signal {
        std::future::poll_fn(|context| {
            for (signal, stream) in &mut self.streams {
                if let Poll::Ready(Some(())) = Pin::new(stream).poll_recv(context) {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// The mask `SigIgn` of `/proc/self/status`; nothing when it cannot be read.
fn ignored_signals() -> u64 {
    fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|status| ignored_by(&status))
        .unwrap_or(0)
}

pub(crate) fn ignored_by(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}
