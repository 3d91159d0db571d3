//! The harness of the memory store.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use aster_conformance::{Harness, PausedWrite, Possible, Written};
use aster_lease::{Fence, LeaseSerializer, MemoryOptions, MemorySerializer, Registers};
use async_trait::async_trait;

use super::{HandClock, on_a_thread};

/// Few, so that a case can fill the queue.
const WAITERS_MAX: usize = 40;

pub struct Memory;

pub struct Store {
    serializer: MemorySerializer,
    clock: Arc<HandClock>,
    /// What the leases protect.
    catalog: Arc<Mutex<BTreeMap<String, String>>>,
}

#[async_trait]
impl Harness for Memory {
    type Store = Store;

    async fn fresh(&self) -> Store {
        let clock = Arc::new(HandClock::default());
        let options = MemoryOptions {
            clock: clock.clone(),
            waiters_max: WAITERS_MAX,
            ..MemoryOptions::default()
        };
        let serializer = MemorySerializer::with_options(options).unwrap();
        Store {
            serializer,
            clock,
            catalog: Arc::default(),
        }
    }

    fn serializer<'a>(&self, store: &'a Store) -> &'a dyn LeaseSerializer {
        &store.serializer
    }

    fn registers<'a>(&self, store: &'a Store) -> Option<&'a dyn Registers> {
        Some(&store.serializer)
    }

    async fn write(&self, store: &Store, fence: &Fence, writer: &str, value: &str) -> Written {
        let written = store.serializer.mutate_fenced(fence, writer, || {
            store
                .catalog
                .lock()
                .unwrap()
                .insert(fence.resource.to_string(), value.to_owned());
        });
        written.map_or_else(
            |rejection| Written::Rejected(Some(rejection)),
            |()| Written::Accepted,
        )
    }

    async fn read(&self, store: &Store, resource: &str) -> Option<String> {
        store.catalog.lock().unwrap().get(resource).cloned()
    }

    async fn start_write(
        &self,
        store: &Store,
        fence: &Fence,
        writer: &str,
        value: &str,
    ) -> Option<PausedWrite> {
        let (serializer, catalog) = (store.serializer.clone(), store.catalog.clone());
        let (fence, writer, value) = (fence.clone(), writer.to_owned(), value.to_owned());
        Some(on_a_thread(
            move |inside: mpsc::Sender<()>, go_on: mpsc::Receiver<()>| {
                let written = serializer.mutate_fenced(&fence, &writer, || {
                    inside.send(()).unwrap();
                    go_on.recv().unwrap();
                    catalog
                        .lock()
                        .unwrap()
                        .insert(fence.resource.to_string(), value);
                });
                written.map_or_else(
                    |rejection| Written::Rejected(Some(rejection)),
                    |()| Written::Accepted,
                )
            },
        ))
    }

    async fn advance(&self, store: &Store, by: Duration) -> Possible {
        store.clock.advance(by);
        Possible::Yes
    }

    async fn restart(&self, store: &mut Store) -> Possible {
        self.restart_beneath(store).await
    }

    async fn restart_beneath(&self, store: &Store) -> Possible {
        store.serializer.restart();
        Possible::Yes
    }

    async fn jump_wall_clock(&self, store: &Store, by_s: i64) -> Possible {
        store.clock.jump_wall(by_s);
        Possible::Yes
    }

    fn waiters_max(&self) -> Option<usize> {
        Some(WAITERS_MAX)
    }
}
