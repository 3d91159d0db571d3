//! From a URL to a store.

use std::fmt;
use std::sync::Arc;

use aster_lease::{
    AuditLog, ErrorKind, LeaseSerializer, MemorySerializer, Registers, SerializerError,
};

use crate::url::{InvalidUrl, StoreUrl};

/// A connected store, whatever it is. Cheap to clone: clones are the same store.
///
/// What a store cannot do is a typed [`SerializerError::Unsupported`]; the docs have the table.
#[derive(Clone)]
pub struct Store {
    name: &'static str,
    serializer: Arc<dyn LeaseSerializer>,
    registers: Option<Arc<dyn Registers>>,
    audit: Option<Arc<dyn AuditLog>>,
}

impl Store {
    /// Who orders ownership changes; what [`LeaseHandle::acquire`](aster_lease::LeaseHandle::acquire)
    /// takes.
    #[must_use]
    pub fn serializer(&self) -> Arc<dyn LeaseSerializer> {
        Arc::clone(&self.serializer)
    }

    /// The small values beside the rows, written only under a fence.
    ///
    /// # Errors
    ///
    /// [`SerializerError::Unsupported`] when this store has none.
    pub fn registers(&self) -> Result<Arc<dyn Registers>, SerializerError> {
        self.registers.clone().ok_or(SerializerError::Unsupported {
            operation: "registers",
        })
    }

    /// What happened to the store's resources.
    ///
    /// # Errors
    ///
    /// [`SerializerError::Unsupported`] when this store keeps no trail.
    pub fn audit(&self) -> Result<Arc<dyn AuditLog>, SerializerError> {
        self.audit
            .clone()
            .ok_or(SerializerError::Unsupported { operation: "audit" })
    }

    /// A store of which everything is one type.
    fn of<S>(name: &'static str, store: S) -> Self
    where
        S: LeaseSerializer + Registers + AuditLog,
    {
        let store = Arc::new(store);
        Self {
            name,
            serializer: store.clone(),
            registers: Some(store.clone()),
            audit: Some(store),
        }
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Store")
            .field("name", &self.name)
            .field("registers", &self.registers.is_some())
            .field("audit", &self.audit.is_some())
            .finish_non_exhaustive()
    }
}

/// No store could be connected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The URL means no store. Nothing was opened or created.
    #[error(transparent)]
    Url(#[from] InvalidUrl),
    /// The SQLite file could not be opened.
    #[cfg(feature = "sqlite")]
    #[error(transparent)]
    Sqlite(#[from] aster_sqlite::OpenError),
    /// The task that opened the store did not finish.
    #[error("opening the store was interrupted: {message}")]
    Interrupted {
        /// What was reported.
        message: String,
    },
}

impl ConnectError {
    /// What to do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            ConnectError::Url(error) => error.kind(),
            #[cfg(feature = "sqlite")]
            ConnectError::Sqlite(error) => error.kind(),
            ConnectError::Interrupted { .. } => ErrorKind::Report,
        }
    }
}

/// Connects to the store that `url` names:
///
/// | URL | store |
/// |---|---|
/// | `memory:` | a new, empty [`MemorySerializer`] of this process |
/// | `sqlite:PATH`, `sqlite:///ABSOLUTE/PATH` | the SQLite file, created if it is missing (feature `sqlite`) |
///
/// The path is taken byte for byte: nothing in it is decoded. A file is opened on a blocking thread when
/// there is a tokio runtime, else in place.
///
/// # Errors
///
/// [`ConnectError`], typed and with what to do. A URL of a store that is not in this build is named so.
pub async fn connect(url: &str) -> Result<Store, ConnectError> {
    connect_as(url, Missing::Create).await
}

/// The same, but a SQLite file that is missing or holds no store is an error, and nothing is made: for
/// who only looks, so that a mistyped path does not look like an empty store.
///
/// # Errors
///
/// [`ConnectError`] as [`connect`].
pub async fn connect_existing(url: &str) -> Result<Store, ConnectError> {
    connect_as(url, Missing::Refuse).await
}

/// What becomes of a store that is not there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Missing {
    Create,
    Refuse,
}

#[cfg_attr(not(feature = "sqlite"), allow(unused_variables))]
async fn connect_as(url: &str, missing: Missing) -> Result<Store, ConnectError> {
    match StoreUrl::parse(url)? {
        StoreUrl::Memory => Ok(Store::of("memory", MemorySerializer::new())),
        #[cfg(feature = "sqlite")]
        StoreUrl::Sqlite(path) => open_sqlite(path, missing).await,
        #[cfg(not(feature = "sqlite"))]
        StoreUrl::Sqlite(_) => Err(InvalidUrl::NotInThisBuild {
            scheme: "sqlite".to_owned(),
        }
        .into()),
    }
}

#[cfg(feature = "sqlite")]
async fn open_sqlite(path: std::path::PathBuf, missing: Missing) -> Result<Store, ConnectError> {
    let options = aster_sqlite::SqliteOptions {
        create: missing == Missing::Create,
        ..aster_sqlite::SqliteOptions::default()
    };
    let open = move || aster_sqlite::SqliteSerializer::open_with(path, options);
    let opened = match tokio::runtime::Handle::try_current() {
        Ok(runtime) => match runtime.spawn_blocking(open).await {
            Ok(opened) => opened,
            Err(error) => {
                return Err(ConnectError::Interrupted {
                    message: error.to_string(),
                });
            }
        },
        Err(_) => open(),
    };
    Ok(Store::of("sqlite", opened?))
}
