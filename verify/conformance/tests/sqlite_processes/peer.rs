//! The other process: this test binary again, serving the same file.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use aster_lease::{LeaseSerializer, Registers};
use aster_sqlite::SqliteSerializer;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;

use crate::support::sqlite::{put, written};
use crate::wire::{Answer, Ask, Sent, map, query};

const DIRECTORY: &str = "ASTER_TEST_STORE";
/// Marks the lines that are meant for the parent, among those of the test harness.
const MARK: &str = "@@ ";

type Pending = Arc<Mutex<HashMap<u64, oneshot::Sender<Answer>>>>;

/// Our end of the other process. It ends with its input.
pub(crate) struct Peer {
    child: Child,
    input: Mutex<Option<ChildStdin>>,
    pending: Pending,
    last_id: AtomicU64,
}

impl Peer {
    /// Starts the test `serve` of this binary for the store in `directory`.
    pub(crate) fn start(serve: &str, directory: &Path) -> Arc<Self> {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", serve, "--nocapture", "--test-threads=1"])
            .env(DIRECTORY, directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let pending = Pending::default();
        let output = BufReader::new(child.stdout.take().unwrap());
        let waiting = Arc::clone(&pending);
        std::thread::Builder::new()
            .name("hear the other process".to_owned())
            .spawn(move || {
                for line in output.lines().map_while(Result::ok) {
                    if let Some((_, told)) = line.split_once(MARK) {
                        let Sent { id, what } = serde_json::from_str(told).unwrap();
                        if let Some(asker) = waiting.lock().unwrap().remove(&id) {
                            let _ = asker.send(what);
                        }
                    }
                }
                // Whoever still waits hears that the process is gone.
                waiting.lock().unwrap().clear();
            })
            .unwrap();
        Arc::new(Self {
            input: Mutex::new(child.stdin.take()),
            child,
            pending,
            last_id: AtomicU64::new(0),
        })
    }

    /// The answer; giving up on it gives up the request over there.
    pub(crate) async fn ask(&self, what: Ask) -> Answer {
        let id = self.last_id.fetch_add(1, Ordering::SeqCst);
        let (asker, answer) = oneshot::channel();
        self.pending.lock().unwrap().insert(id, asker);
        self.send(&Sent { id, what });
        let mut asked = Asked {
            peer: self,
            id,
            is_answered: false,
        };
        let answer = answer.await.expect("the other process ended");
        asked.is_answered = true;
        answer
    }

    fn send(&self, sent: &Sent<Ask>) {
        let line = serde_json::to_string(sent).unwrap();
        let mut input = self.input.lock().unwrap();
        writeln!(input.as_mut().unwrap(), "{line}").unwrap();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        *self.input.lock().unwrap() = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Asked<'a> {
    peer: &'a Peer,
    id: u64,
    is_answered: bool,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if !self.is_answered {
            self.peer.pending.lock().unwrap().remove(&self.id);
            self.peer.send(&Sent {
                id: self.id,
                what: Ask::GiveUp,
            });
        }
    }
}

/// The directory of the store, in the other process only.
pub(crate) fn directory() -> Option<PathBuf> {
    std::env::var_os(DIRECTORY).map(PathBuf::from)
}

/// What the other process does until its input ends.
pub(crate) async fn serve(path: PathBuf, open: impl Fn() -> SqliteSerializer) {
    let (sender, mut asked) = mpsc::unbounded_channel();
    std::thread::Builder::new()
        .name("hear the parent".to_owned())
        .spawn(move || {
            for line in std::io::stdin().lock().lines().map_while(Result::ok) {
                let sent: Sent<Ask> = serde_json::from_str(&line).unwrap();
                if sender.send(sent).is_err() {
                    return;
                }
            }
        })
        .unwrap();
    let mut store = open();
    let mut running: HashMap<u64, AbortHandle> = HashMap::new();
    while let Some(Sent { id, what }) = asked.recv().await {
        running.retain(|_, task| !task.is_finished());
        match what {
            Ask::GiveUp => {
                if let Some(task) = running.remove(&id) {
                    task.abort();
                }
            }
            Ask::Restart => {
                drop(store);
                store = open();
                tell(id, Answer::Restarted);
            }
            what => {
                let (store, path) = (store.clone(), path.clone());
                let task = Handle::current().spawn(async move {
                    tell(id, answer(&store, &path, what).await);
                });
                running.insert(id, task.abort_handle());
            }
        }
    }
}

#[allow(clippy::print_stdout, reason = "the parent reads it")]
fn tell(id: u64, what: Answer) {
    let line = serde_json::to_string(&Sent { id, what }).unwrap();
    println!("{MARK}{line}");
}

async fn answer(store: &SqliteSerializer, path: &Path, what: Ask) -> Answer {
    match what {
        Ask::Transition(resource, op) => {
            Answer::Transition(map(store.transition(&resource, op).await))
        }
        Ask::Many(requests) => {
            let outcomes = store.transition_many(requests).await;
            Answer::Many(outcomes.into_iter().map(map).collect())
        }
        Ask::Snapshot(resource) => Answer::Snapshot(map(store.snapshot(&resource).await)),
        Ask::List(prefix, after, limit, held_only) => {
            let query = query(prefix, after, limit, held_only);
            Answer::List(map(store.list(query).await))
        }
        Ask::Queue(resource) => {
            let queue = store.queue(&resource).await;
            let queue = queue.map(|queue| queue.into_iter().map(Into::into).collect());
            Answer::Queue(queue.map_err(Into::into))
        }
        Ask::Wait(resource, wish) => {
            Answer::Wait(map(store.acquire_wait(&resource, wish.into()).await))
        }
        Ask::Authority => Answer::Authority(map(LeaseSerializer::authority(store).await)),
        Ask::Put(fence, writer, value) => {
            let result = store.mutate_fenced(&fence, writer.as_str(), |tx| {
                put(tx, &fence.resource, &value)
            });
            Answer::Put(written(result).into())
        }
        Ask::Read(resource) => {
            let value = Registers::read(store, &resource).await;
            Answer::Read(value.map(|value| value.map(Into::into)).map_err(Into::into))
        }
        Ask::Set(set) => {
            let expected = set.expected();
            let answer = store
                .compare_and_set_with_id(&set.fence, &set.writer, expected, set.value, set.write_id)
                .await;
            Answer::Set(map(answer))
        }
        Ask::SetAndRelease(set) => {
            let expected = set.expected();
            let answer = store
                .release_with_value(&set.fence, &set.writer, expected, set.value, set.write_id)
                .await;
            Answer::Set(map(answer))
        }
        Ask::Restart | Ask::GiveUp => unreachable!("done before: {}", path.display()),
    }
}
