//! Opening, creating and adopting a store.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock};

use aster_core::{Authority, Principal, ResourceName};
use aster_lease::{AuditEvent, SerializerError};
use rusqlite::{Connection, Transaction, TransactionBehavior};

use crate::audit::{self, NewRecord};
use crate::connection::{Durability, connect};
use crate::error::{Fault, OpenError, fault, is_of_one_row, open_error, storage};
use crate::gate::Gate;
use crate::identity::{FileFacts, JournalPaths, check_place, facts, resolve, sync_directory};
use crate::judge::effective;
use crate::options::SqliteOptions;
use crate::rejections::Rejections;
use crate::rows::{self, RawRow, StoredRow};
use crate::schema::{self, Id, SCHEMA_VERSION, StoreRow, count_change};
use crate::shared::Shared;
use crate::side::{self, ClockName, End, SideError, SideFile, Witness};
use crate::suspects::Suspects;
use crate::untouched;
use crate::waiting::Waiting;

/// What [`adopt`](crate::SqliteSerializer::adopt) did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Adopted {
    /// The store's new authority. Fences of the old one are refused from now on.
    pub authority: Authority,
    /// The authority that it had before.
    pub previous_authority: Authority,
    /// How many held leases were ended.
    pub leases_ended: u64,
}

/// Opens the store at `path`, or makes one in a new or existing SQLite file.
///
/// The connection is the first of those that stay, so that the log stays too.
pub(crate) fn open(
    path: &Path,
    options: SqliteOptions,
) -> Result<(Arc<Shared>, Connection), OpenError> {
    let path = resolve(path)?;
    check_place(&path)?;
    let side_path = side::path_of(&path);
    let durability = match options.create {
        true => Durability::DurableCreate,
        false => Durability::Durable,
    };
    if check_exists(&path, options.create)? {
        // Connecting writes: it switches the file to a write-ahead log.
        untouched::look(&path, options.busy_bound, |look| {
            if schema::exists(look).map_err(|error| open_error(&path, error))? {
                check_store(look, &path, &options).map(|_| ())
            } else if options.create {
                Ok(())
            } else {
                Err(OpenError::NoStore { path: path.clone() })
            }
        })?;
    }
    let connection = connect_main(&path, &options, durability)?;
    let found = facts_of(&path)?;
    let error = |error| open_error(&path, error);
    if options.create && !schema::exists(&connection).map_err(error)? {
        create(&connection, &path, &options, &found)?;
    }
    let store = check_store(&connection, &path, &options)?;
    let clock = name_clock(&options)?;
    let mut process = [0; 8];
    options.entropy.fill(&mut process)?;
    let shared = Shared {
        side_path,
        authority: store.authority,
        file: found.id,
        clock,
        gate: Gate::default(),
        rejections: Rejections::default(),
        suspects: Suspects::default(),
        waiting: Arc::new(Waiting::new(
            process,
            options.time.clone(),
            options.metrics.clone(),
        )),
        seen_sequence: AtomicU64::new(store.sequence),
        commit_took_ns: AtomicU64::new(0),
        reading: Mutex::default(),
        journal: OnceLock::new(),
        journal_paths: JournalPaths::of(&path),
        blocked: AtomicBool::new(false),
        repair_queued: AtomicBool::new(false),
        path,
        options,
    };
    shared
        .journal_paths
        .make_durable()
        .map_err(|source| OpenError::Io {
            path: shared.path.clone(),
            source,
        })?;
    join(&shared, &connection).map_err(|error| as_open_error(&shared.path, error))?;
    shared.keep_journal();
    Ok((Arc::new(shared), connection))
}

/// Gives a refused store a new authority.
pub(crate) fn adopt(
    path: &Path,
    operator: &Principal,
    options: &SqliteOptions,
) -> Result<Adopted, OpenError> {
    let path = resolve(path)?;
    check_place(&path)?;
    check_exists(&path, false)?;
    untouched::look(&path, options.busy_bound, |look| check_version(look, &path))?;
    let connection = connect_main(&path, options, Durability::Durable)?;
    let found = facts_of(&path)?;
    check_version(&connection, &path)?;
    let authority = aster_lease::entropy::authority(&*options.entropy)?;
    let adopted = adopt_as(
        &connection,
        Some(&path),
        operator,
        options,
        &found,
        authority,
    )
    .map_err(|error| as_open_error(&path, error))?;
    fold_journal(&connection);
    Ok(adopted)
}

/// The same for a copy at `path` that will get another name before anybody opens it: whoever does so
/// first makes its side file. `name` is that other name.
pub(crate) fn adopt_copy(
    connection: &Connection,
    path: &Path,
    name: &Path,
    operator: &Principal,
    options: &SqliteOptions,
) -> Result<Adopted, OpenError> {
    let found = facts_of(path)?;
    let authority = aster_lease::entropy::authority(&*options.entropy)?;
    adopt_as(connection, None, operator, options, &found, authority)
        .map_err(|error| as_open_error(name, error))
}

/// `side_of` is the main file beside which a side file is made.
fn adopt_as(
    connection: &Connection,
    side_of: Option<&Path>,
    operator: &Principal,
    options: &SqliteOptions,
    found: &FileFacts,
    authority: Authority,
) -> Result<Adopted, SerializerError> {
    let transaction =
        Transaction::new_unchecked(connection, TransactionBehavior::Immediate).map_err(storage)?;
    let mut store = schema::load(&transaction)?;
    let previous_authority = store.authority;
    let leases_ended = transaction
        .execute(
            "UPDATE main.aster_rows SET epoch = epoch + 1, holder = NULL, ttl_ms = NULL
             WHERE holder IS NOT NULL",
            [],
        )
        .map_err(storage)? as u64;
    // Everything that the lost side file or the lost time may have counted is passed by.
    transaction
        .execute(
            "UPDATE main.aster_rows SET revision = min(revision, ?1) + ?2, hold_offs = 0",
            [
                i64::MAX - schema::signed(rows::REVISION_STRIDE),
                schema::signed(rows::REVISION_STRIDE),
            ],
        )
        .map_err(storage)?;
    transaction
        .execute("DELETE FROM main.aster_hold_offs", [])
        .map_err(storage)?;
    schema::remove_backup_mark(&transaction).map_err(storage)?;
    store.authority = authority;
    store.birth = found.birth;
    transaction
        .execute(
            "UPDATE main.aster_store SET authority = ?1, inode = ?2, birth_ns = ?3 WHERE one = 1",
            rusqlite::params![
                authority.as_bytes(),
                store.birth.inode.cast_signed(),
                store.birth.birth_ns
            ],
        )
        .map_err(storage)?;
    let detail = format!(
        "the authority before was {previous_authority}, and {leases_ended} held leases were ended"
    );
    let record = NewRecord {
        at_unix_ms: options.time.wall_unix_ms(),
        event: AuditEvent::Adopted,
        resource: None,
        epoch_carried: None,
        epoch_current: store.floor,
        holder: None,
        actor: Some(operator.as_str()),
        detail: Some(&detail),
        count: 1,
    };
    audit::insert(&transaction, &record, options.audit_records_max)?;
    match side_of {
        Some(path) => replace_side(&transaction, &mut store, path, options)?,
        None => name_side(&transaction, &mut store, options)?,
    }
    count_change(&transaction, &mut store)?;
    transaction.commit().map_err(storage)?;
    Ok(Adopted {
        authority,
        previous_authority,
        leases_ended,
    })
}

/// Whether there is a file. Refuses a missing one unless it may be made.
fn check_exists(path: &Path, may_be_made: bool) -> Result<bool, OpenError> {
    match facts(path) {
        Ok(_) => Ok(true),
        Err(_) if may_be_made => Ok(false),
        Err(_) => Err(OpenError::Missing {
            path: path.to_owned(),
        }),
    }
}

/// Refuses what is no store, is newer, or may have gone back in time. Only reads the file.
fn check_store(
    connection: &Connection,
    path: &Path,
    options: &SqliteOptions,
) -> Result<StoreRow, OpenError> {
    check_version(connection, path)?;
    let load = || schema::load(connection).map_err(|error| as_open_error(path, error));
    let store = load()?;
    schema::check_tables(connection).map_err(|error| match fault(&error) {
        // There is no such table, or no such column.
        Fault::Other => OpenError::Damaged {
            path: path.to_owned(),
            message: error.to_string(),
        },
        _ => open_error(path, error),
    })?;
    if store.birth != facts_of(path)?.birth {
        return Err(OpenError::Copied {
            path: path.to_owned(),
        });
    }
    if let Some(witness) = side::witness(&side::path_of(path), options)
        && witness.authority == store.authority
    {
        // The file may have moved on since the store's row was read, so read it again.
        let store = load()?;
        if witness.sequence > store.sequence {
            return Err(OpenError::WentBack {
                path: path.to_owned(),
                found: store.sequence,
                seen: witness.sequence,
            });
        }
    }
    Ok(store)
}

fn connect_main(
    path: &Path,
    options: &SqliteOptions,
    durability: Durability,
) -> Result<Connection, OpenError> {
    let error = |error| open_error(path, error);
    let connection = connect(path, options, durability).map_err(error)?;
    if connection.is_readonly("main").map_err(error)? {
        return Err(OpenError::ReadOnly {
            path: path.to_owned(),
        });
    }
    Ok(connection)
}

fn facts_of(path: &Path) -> Result<FileFacts, OpenError> {
    facts(path).map_err(|source| OpenError::Io {
        path: path.to_owned(),
        source,
    })
}

pub(crate) fn check_version(connection: &Connection, path: &Path) -> Result<(), OpenError> {
    let error = |error| open_error(path, error);
    if !schema::exists(connection).map_err(error)? {
        return Err(OpenError::NoStore {
            path: path.to_owned(),
        });
    }
    let version = schema::version(connection).map_err(error)?;
    let damaged = |message: &str| OpenError::Damaged {
        path: path.to_owned(),
        message: message.to_owned(),
    };
    let found = version.ok_or_else(|| damaged("the store's own row is missing"))?;
    let found = match u64::try_from(found) {
        Ok(found) if found > 0 => found,
        _ => return Err(damaged("a schema version that never was")),
    };
    if found > SCHEMA_VERSION {
        return Err(OpenError::NewerSchema {
            path: path.to_owned(),
            found,
            supported: SCHEMA_VERSION,
        });
    }
    Ok(())
}

/// Makes our tables, unless another process just did.
fn create(
    connection: &Connection,
    path: &Path,
    options: &SqliteOptions,
    found: &FileFacts,
) -> Result<(), OpenError> {
    let authority = aster_lease::entropy::authority(&*options.entropy)?;
    let made = || -> Result<(), SerializerError> {
        let transaction = Transaction::new_unchecked(connection, TransactionBehavior::Immediate)
            .map_err(storage)?;
        if schema::exists(&transaction).map_err(storage)? {
            return Ok(());
        }
        let mut store = StoreRow {
            schema_version: SCHEMA_VERSION,
            authority,
            floor: 0,
            sequence: 1,
            birth: found.birth,
            side_id: [0; 16],
        };
        schema::create(&transaction, &store).map_err(storage)?;
        replace_side(&transaction, &mut store, path, options)?;
        transaction.commit().map_err(storage)
    };
    made().map_err(|error| as_open_error(path, error))?;
    fold_journal(connection);
    sync_directory(path).map_err(|source| OpenError::Io {
        path: path.to_owned(),
        source,
    })
}

/// Brings the store's own row into the main file, so that a copy of that file alone is told from a
/// file that never was a store. Others may be in the way; the journal is folded later then.
fn fold_journal(connection: &Connection) {
    let folded = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
    if let Err(error) = folded {
        tracing::debug!(%error, "the journal stays for now");
    }
}

fn name_clock(options: &SqliteOptions) -> Result<ClockName, OpenError> {
    Ok(match options.time.domain() {
        Some(domain) => ClockName::Shared(domain.as_str().to_owned()),
        None => {
            let mut seed = [0; 16];
            options.entropy.fill(&mut seed)?;
            ClockName::Private {
                seed,
                watches: Arc::new(Mutex::default()),
            }
        }
    })
}

/// Makes a new side file beside the main file at `path` and names it there. The caller commits.
pub(crate) fn replace_side(
    transaction: &Connection,
    store: &mut StoreRow,
    path: &Path,
    options: &SqliteOptions,
) -> Result<(), SerializerError> {
    name_side(transaction, store, options)?;
    let witness = Witness {
        authority: store.authority,
        sequence: store.sequence,
    };
    side::create(path, options, store.side_id, witness)?;
    rows::raise_revisions(transaction)
}

/// Names a side file that is not there yet.
fn name_side(
    transaction: &Connection,
    store: &mut StoreRow,
    options: &SqliteOptions,
) -> Result<(), SerializerError> {
    let mut id: Id = [0; 16];
    options.entropy.fill(&mut id)?;
    transaction
        .execute(
            "UPDATE main.aster_store SET side_id = ?1 WHERE one = 1",
            [id],
        )
        .map_err(storage)?;
    store.side_id = id;
    Ok(())
}

/// Makes sure that there is a side file that serves, and that every held row whose last instant is
/// from another clock is watched from now on at the latest.
fn join(shared: &Shared, connection: &Connection) -> Result<(), SerializerError> {
    let store = schema::load(connection)?;
    match look_at_side(shared, &store) {
        Ok(Arrival::Again) => return Ok(()),
        Ok(Arrival::NewClock) => {}
        Ok(Arrival::NewBoot) => first_of_boot(shared, connection, false)?,
        Err(SideError::NeedsRepair) => first_of_boot(shared, connection, true)?,
        Err(SideError::Store(error)) => return Err(error),
    }
    match arm(shared, connection, &mut None) {
        // Where it was looked at it seemed fine.
        Err(SideError::NeedsRepair) => first_of_boot(shared, connection, true)?,
        armed => return armed.map_err(unserved),
    }
    arm(shared, connection, &mut None).map_err(unserved)
}

/// Why a side file does not serve that was just looked at or made anew.
pub(crate) fn unserved(error: SideError) -> SerializerError {
    match error {
        SideError::Store(error) => error,
        SideError::NeedsRepair => crate::shared::side_unavailable(),
    }
}

/// What the side file knows of our clock when we come.
enum Arrival {
    /// It has been here, and foreign rows are watched on it.
    Again,
    /// Others of this boot have been here.
    NewClock,
    /// Nobody has been here since the machine started: the newest renewals may be lost.
    NewBoot,
}

fn look_at_side(shared: &Shared, store: &StoreRow) -> Result<Arrival, SideError> {
    let side = known_side(shared, store)?;
    let ClockName::Shared(domain) = &shared.clock else {
        return Ok(Arrival::NewClock);
    };
    match side.find_era(domain)? {
        Some((_, true)) => Ok(Arrival::Again),
        Some((_, false)) => Ok(Arrival::NewClock),
        None if side.knows_boot_of(domain)? => Ok(Arrival::NewClock),
        // Pages that were never synced may be damaged without a sign.
        None if side.is_sound() => Ok(Arrival::NewBoot),
        None => Err(SideError::NeedsRepair),
    }
}

/// The side file that belongs to the main file, as a clock sees it that needs no era: looking must
/// not yet give ours one.
fn known_side(shared: &Shared, store: &StoreRow) -> Result<SideFile, SideError> {
    let nobody = ClockName::Private {
        seed: [0; 16],
        watches: Arc::default(),
    };
    SideFile::open(&shared.side_path, &shared.options, &nobody, store.side_id)
}

/// The first opening after a reboot, or with a lost side file. The newest renewals may be lost, so
/// revisions jump over them.
fn first_of_boot(
    shared: &Shared,
    connection: &Connection,
    is_lost: bool,
) -> Result<(), SerializerError> {
    let (transaction, mut store) = shared.begin(connection, TransactionBehavior::Immediate)?;
    // Somebody else may have replaced it while we waited.
    if is_lost && !known_side(shared, &store).is_ok_and(|side| side.is_sound()) {
        replace_side(&transaction, &mut store, &shared.path, &shared.options)?;
    } else {
        rows::raise_revisions(&transaction)?;
        let forgotten = known_side(shared, &store).and_then(|mut side| side.forget_waiters(shared));
        if let Err(error) = forgotten {
            // Each of them costs a claim time then.
            tracing::debug!(?error, "places from before the reboot are left behind");
        }
    }
    count_change(&transaction, &mut store)?;
    transaction.commit().map_err(storage)?;
    shared.saw(store.sequence);
    Ok(())
}

/// Begins to watch every held row and hold-off of another clock that is not watched yet, so that a
/// reboot gives each one full term from the first opening and opening again does not extend it.
pub(crate) fn arm(
    shared: &Shared,
    connection: &Connection,
    slot: &mut Option<SideFile>,
) -> Result<(), SideError> {
    let (transaction, store) = shared.begin(connection, TransactionBehavior::Deferred)?;
    let side = shared.side(slot, &store)?;
    let held = held_elsewhere(&transaction, side.era)?;
    drop(transaction);
    side.write(|side| {
        let now_ns = shared.now_ns();
        for (resource, row) in &held {
            let evidence = side.evidence(resource, Some(row))?;
            let mut row = effective(row, evidence.renewal.as_ref());
            let verdict = crate::judge::judge(&mut row, &evidence, side.era, now_ns);
            for (watched, seen) in verdict.watches {
                side.watch(resource, watched, seen)?;
            }
        }
        side.set_armed()?;
        Ok(((), End::Commit))
    })
}

fn held_elsewhere(
    connection: &Connection,
    era: Id,
) -> Result<Vec<(ResourceName, StoredRow)>, SerializerError> {
    let columns = rows::COLUMNS;
    let mut select = connection
        .prepare(&format!(
            "SELECT {columns} FROM main.aster_rows
             WHERE (holder IS NOT NULL AND era <> ?1)
                OR resource IN (SELECT resource FROM main.aster_hold_offs WHERE era <> ?1)"
        ))
        .map_err(storage)?;
    let raw = select.query_map([era], RawRow::read).map_err(storage)?;
    raw.map(|raw| raw.map_err(storage).and_then(|raw| raw.parse(connection)))
        // A damaged row is reported to whoever asks for it; the others do not wait for that.
        .filter(|row| !row.as_ref().is_err_and(is_of_one_row))
        .collect()
}

/// How a failed step reads to someone who opens a store.
pub(crate) fn as_open_error(path: &Path, error: SerializerError) -> OpenError {
    let path = path.to_owned();
    match error {
        SerializerError::Busy { .. } => OpenError::Busy { path },
        SerializerError::Refused { message } => OpenError::Refused { path, message },
        SerializerError::Storage {
            message,
            source: Some(source),
        } => match source.downcast::<rusqlite::Error>() {
            Ok(error) => open_error(&path, *error),
            Err(_) => OpenError::Storage {
                path,
                message,
                source: None,
            },
        },
        other => OpenError::Storage {
            path,
            message: other.to_string(),
            source: None,
        },
    }
}
