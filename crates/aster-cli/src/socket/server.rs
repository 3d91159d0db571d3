//! The run's side: takes the fence at the moment of each request.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use aster::lease::{
    ErrorKind, ExpectedRevision, Fence, FenceRejection, LeaseHandle, Principal, RegisterError,
    Registers, WriteId,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::frame::{Answer, Lengths, PREFIX_BYTES, Request, decode, encode};
use crate::failure::{Failure, FailureKind};
use crate::identity::random_hex;
use crate::locations;

/// Connections served at once; more wait in the listener's queue.
const CONNECTIONS_MAX: usize = 64;
/// How long a peer may take to send its request or to take its answer.
const PEER_WAIT: Duration = Duration::from_secs(5);
/// How long a peer whose write was rejected may take to say so, before the work is ended.
const HEARING_WAIT: Duration = Duration::from_millis(500);
/// How often a put is sent to a store that says that trying again may help.
const PUT_ATTEMPTS_MAX: u32 = 6;
/// The pause before the second attempt; it doubles with each.
const PUT_PAUSE: Duration = Duration::from_millis(50);
/// The longest path of a Unix socket on Linux, its terminating zero left out.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// A fresh directory that only this user can enter, with the socket in it. Removed when dropped.
#[derive(Debug)]
pub(crate) struct PrivateDirectory {
    path: PathBuf,
}

impl PrivateDirectory {
    pub(crate) fn create() -> Result<Self, Failure> {
        let name = format!("aster-{}", random_hex()?);
        let mut path = std::env::temp_dir().join(&name);
        if path.join("socket").as_os_str().len() > SOCKET_PATH_BYTES_MAX || !path.is_absolute() {
            path = Path::new("/tmp").join(&name);
        }
        locations::create_private_directory(&path)
            .map_err(|error| Failure::io(format!("cannot create {}", path.display()), &error))?;
        Ok(Self { path })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.path.join("socket")
    }
}

impl Drop for PrivateDirectory {
    fn drop(&mut self) {
        remove_private_directory(&self.path);
    }
}

/// Removes exactly what a run puts there.
pub(crate) fn remove_private_directory(path: &Path) {
    let _ = std::fs::remove_file(path.join("socket"));
    let _ = std::fs::remove_dir(path);
}

/// What the requests are answered from.
#[derive(Clone)]
pub(crate) struct Service {
    pub(crate) lease: Arc<LeaseHandle>,
    pub(crate) registers: Result<Arc<dyn Registers>, Failure>,
    pub(crate) writer: Principal,
    pub(crate) verdict: Arc<Verdict>,
}

/// The first rejection of a write: the resource says that the ownership is over, and it knows better than the
/// lease, which will hear of it at its next renewal only.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    rejection: OnceLock<FenceRejection>,
    passed: Notify,
}

impl Verdict {
    /// From here on there is no fence any more.
    fn set(&self, rejection: FenceRejection) {
        // The first one stays.
        let _ = self.rejection.set(rejection);
    }

    fn pass(&self) {
        self.passed.notify_one();
    }

    /// Resolves for the one who ends the work. Cancel safe.
    pub(crate) async fn passed(&self) -> FenceRejection {
        loop {
            self.passed.notified().await;
            if let Some(rejection) = self.rejection.get() {
                return rejection.clone();
            }
        }
    }
}

/// The listener and the connections that it has accepted.
pub(crate) struct Server {
    listener: UnixListener,
    service: Service,
    connections: JoinSet<()>,
}

impl Server {
    pub(crate) fn bind(directory: &PrivateDirectory, service: Service) -> Result<Self, Failure> {
        let path = directory.socket();
        let listener = UnixListener::bind(&path)
            .map_err(|error| Failure::io(format!("cannot listen at {}", path.display()), &error))?;
        Ok(Self {
            listener,
            service,
            connections: JoinSet::new(),
        })
    }

    /// Accepts and finishes connections for as long as it is polled. Dropping the server ends them.
    pub(crate) async fn serve(&mut self) {
        loop {
            let is_full = self.connections.len() >= CONNECTIONS_MAX;
            tokio::select! {
                Some(_) = self.connections.join_next(), if !self.connections.is_empty() => {}
                accepted = self.listener.accept(), if !is_full => match accepted {
                    Ok((stream, _)) => {
                        let service = self.service.clone();
                        self.connections.spawn(async move {
                            if let Err(error) = service.connection(stream).await {
                                tracing::debug!(%error, "a connection of the command was closed");
                            }
                        });
                    }
                    // Out of descriptors, most likely: the peer sees its connection wait or end.
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a connection of the command");
                        tokio::time::sleep(PUT_PAUSE).await;
                    }
                },
            }
        }
    }
}

impl Service {
    async fn connection(&self, mut stream: UnixStream) -> io::Result<()> {
        let peer = stream.peer_cred()?.uid();
        if peer != rustix::process::geteuid().as_raw() {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "the peer is another user",
            ));
        }
        let (request, body) = timeout(PEER_WAIT, read_request(&mut stream)).await??;
        let (answer, body) = self.answer(request, body).await;
        let is_rejected = matches!(
            &answer,
            Answer::Failed { failure } if failure.kind == FailureKind::WriteRejected
        );
        let frame = encode(&answer, &body)?;
        let written = timeout(PEER_WAIT, stream.write_all(&frame)).await;
        if is_rejected {
            // Ending the work ends the peer too: it may say first what it has heard.
            let _ = timeout(HEARING_WAIT, stream.read_u8()).await;
            self.verdict.pass();
        }
        written?
    }

    async fn answer(&self, request: Request, body: Vec<u8>) -> (Answer, Vec<u8>) {
        let answered = match request {
            Request::Ready => self.fence().map(|_| (Answer::Go, Vec::new())),
            Request::Fence => self
                .fence()
                .map(|fence| (Answer::Fence { fence }, Vec::new())),
            Request::Get => self.get().await,
            Request::Put { expect, write_id } => self
                .put(expect.into(), body, write_id)
                .await
                .map(|answer| (answer, Vec::new())),
        };
        answered.unwrap_or_else(|failure| (Answer::Failed { failure }, Vec::new()))
    }

    fn fence(&self) -> Result<Fence, Failure> {
        let why = match (self.verdict.rejection.get(), self.lease.fence()) {
            (None, Some(fence)) => return Ok(fence),
            (Some(rejection), _) => rejection.to_string(),
            (None, None) => match self.lease.ended_reason() {
                Some(reason) => reason.to_string(),
                None => "its time ran out without a renewal".to_owned(),
            },
        };
        Err(Failure::new(
            FailureKind::LeaseLost,
            format!(
                "the lease of {} has ended ({why}): stop the work",
                self.lease.resource()
            ),
        ))
    }

    /// Reading needs no lease, so it works after the loss too.
    async fn get(&self) -> Result<(Answer, Vec<u8>), Failure> {
        let registers = self.registers.clone()?;
        let resource = self.lease.resource().clone();
        Ok(match registers.read(&resource).await? {
            Some(register) => {
                let answer = Answer::Value {
                    resource,
                    value_revision: register.value_revision,
                    epoch: register.epoch,
                };
                (answer, register.value)
            }
            None => (Answer::Absent { resource }, Vec::new()),
        })
    }

    /// Every attempt takes its own fence, all carry the same write id: a lost reply is recognized by the
    /// store, and a lost lease ends the attempts.
    async fn put(
        &self,
        expected: ExpectedRevision,
        value: Vec<u8>,
        write_id: WriteId,
    ) -> Result<Answer, Failure> {
        let registers = self.registers.clone()?;
        let mut pause = PUT_PAUSE;
        let mut attempt = 1;
        // An attempt had no answer, so it may have been carried out.
        let mut is_open = false;
        loop {
            let fence = self.fence()?;
            let written = registers
                .compare_and_set_with_id(&fence, &self.writer, expected, value.clone(), write_id)
                .await;
            match written {
                Ok(value_revision) => {
                    return Ok(Answer::Written {
                        resource: fence.resource,
                        value_revision,
                        epoch: fence.epoch,
                    });
                }
                Err(RegisterError::Store(error))
                    if error.kind() == ErrorKind::Retry && attempt < PUT_ATTEMPTS_MAX =>
                {
                    tracing::debug!(%error, attempt, "trying the put again");
                    is_open = true;
                }
                Err(error) => {
                    if let RegisterError::Rejected(rejection) = &error {
                        self.verdict.set(rejection.clone());
                    }
                    return Err(refused(error, is_open));
                }
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
            attempt += 1;
        }
    }
}

/// The last attempt was refused, which says nothing about one before it that had no answer.
fn refused(error: RegisterError, is_open: bool) -> Failure {
    let mut failure = Failure::from(error);
    let is_refusal = matches!(
        failure.kind,
        FailureKind::WriteRejected | FailureKind::Conflict
    );
    if is_open && is_refusal {
        failure.message.push_str(
            "; an earlier attempt had no answer, so the value may have been written before: read the register",
        );
    }
    failure
}

pub(crate) async fn read_request(
    stream: &mut (impl AsyncRead + Unpin),
) -> io::Result<(Request, Vec<u8>)> {
    let mut prefix = [0; PREFIX_BYTES];
    stream.read_exact(&mut prefix).await?;
    let lengths = Lengths::parse(prefix)?;
    let mut header = vec![0; lengths.header];
    stream.read_exact(&mut header).await?;
    let request = decode(&header)?;
    let mut body = vec![0; lengths.body];
    stream.read_exact(&mut body).await?;
    Ok((request, body))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use aster::lease::{
        AcquireOutcome, ExpectedRevision, Fence, FenceRejection, LeaseHandle, LeaseOptions,
        MemorySerializer, Principal, RegisterError, RegisterValue, Registers, SerializerError,
        WriteId,
    };
    use async_trait::async_trait;

    use super::{Answer, Service, Verdict, refused};

    /// Carries the first write out and fails all the same.
    struct LosesTheFirstAnswer {
        store: MemorySerializer,
        has_lost: AtomicBool,
    }

    #[async_trait]
    impl Registers for LosesTheFirstAnswer {
        async fn read(&self, resource: &str) -> Result<Option<RegisterValue>, SerializerError> {
            self.store.read(resource).await
        }

        async fn compare_and_set_with_id(
            &self,
            fence: &Fence,
            writer: &str,
            expected: ExpectedRevision,
            value: Vec<u8>,
            write_id: WriteId,
        ) -> Result<u64, RegisterError> {
            let answer = self
                .store
                .compare_and_set_with_id(fence, writer, expected, value, write_id)
                .await;
            if self.has_lost.swap(true, Ordering::SeqCst) {
                return answer;
            }
            let message = "its answer got lost".to_owned();
            Err(SerializerError::Busy { message }.into())
        }

        async fn compare_and_set(
            &self,
            fence: &Fence,
            writer: &str,
            expected: ExpectedRevision,
            value: Vec<u8>,
        ) -> Result<u64, RegisterError> {
            let write = self.store.compare_and_set(fence, writer, expected, value);
            write.await
        }

        async fn release_with_value(
            &self,
            fence: &Fence,
            writer: &str,
            expected: ExpectedRevision,
            value: Vec<u8>,
            write_id: WriteId,
        ) -> Result<u64, RegisterError> {
            let store = &self.store;
            store
                .release_with_value(fence, writer, expected, value, write_id)
                .await
        }
    }

    #[tokio::test]
    async fn a_put_whose_answer_got_lost_is_recognized_when_it_is_sent_again() {
        let store = MemorySerializer::new();
        let options = LeaseOptions::default();
        let acquired =
            LeaseHandle::acquire(Arc::new(store.clone()), "catalog", "worker-a", options);
        let Ok(AcquireOutcome::Granted(lease)) = acquired.await else {
            panic!("nobody else has it");
        };
        let registers = LosesTheFirstAnswer {
            store: store.clone(),
            has_lost: AtomicBool::new(false),
        };
        let service = Service {
            lease: Arc::new(lease),
            registers: Ok(Arc::new(registers)),
            writer: Principal::new("worker-a").unwrap(),
            verdict: Arc::new(Verdict::default()),
        };
        let id = WriteId::from_bytes([1; 16]);
        let absent = ExpectedRevision::Absent;
        let answer = service.put(absent, b"v1".to_vec(), id).await.unwrap();
        let Answer::Written { value_revision, .. } = answer else {
            panic!("it was written");
        };
        assert_eq!(value_revision, 1);
        let register = store.read("catalog").await.unwrap().unwrap();
        assert_eq!(
            (register.value_revision, register.value),
            (1, b"v1".to_vec())
        );
    }

    fn stale() -> RegisterError {
        RegisterError::Rejected(FenceRejection::StaleEpoch {
            carried: 3,
            current: 5,
        })
    }

    fn conflict() -> RegisterError {
        RegisterError::Conflict { current: Some(4) }
    }

    #[test]
    fn a_refusal_after_a_lost_answer_does_not_say_that_nothing_was_written() {
        for error in [stale, conflict] {
            let plain = refused(error(), false);
            let open = refused(error(), true);
            assert_eq!(plain.kind, open.kind, "the exit code stays");
            assert!(!plain.message.contains("may have been written"));
            assert!(open.message.contains("may have been written"));
        }
    }
}
