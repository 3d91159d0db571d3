//! What a protected closure may not do. SQLite asks an authorizer when it compiles a statement, and a
//! hook when it commits; another hook hears of it when a transaction was rolled back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use rusqlite::Connection;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};

use crate::schema::PREFIX;

/// FTS5 asks for this one by itself whenever its tables are used. It changes nothing.
const HARMLESS_PRAGMA: &str = "data_version";

const OPEN: u8 = 0;
const CLOSURE: u8 = 1;
/// A closure runs whose transaction is over.
const ENDED: u8 = 2;

/// Watches over the closures of one connection.
#[derive(Debug, Clone)]
pub(crate) struct Guard {
    mode: Arc<AtomicU8>,
}

impl Guard {
    /// Puts a guard on `connection` that lets everything pass until it is told to
    /// [`watch`](Self::watch). A closure has only a shared reference and cannot take it off.
    pub(crate) fn install(connection: &mut Connection) -> rusqlite::Result<Self> {
        // What a closure compiled must not be found by us in the cache, or the other way round.
        connection.set_prepared_statement_cache_capacity(0);
        let mode = Arc::new(AtomicU8::new(OPEN));
        let authorizer_mode = mode.clone();
        connection.authorizer(Some(move |context: AuthContext<'_>| {
            let is_allowed = match authorizer_mode.load(Ordering::Acquire) {
                OPEN => true,
                CLOSURE => !is_refused(&context),
                _ => false,
            };
            match is_allowed {
                true => Authorization::Allow,
                false => Authorization::Deny,
            }
        }))?;
        let commit_mode = mode.clone();
        // `true` turns the commit into a rollback: after the transaction was ended by OR ROLLBACK,
        // later statements would otherwise commit one by one, without a fence.
        connection.commit_hook(Some(move || commit_mode.load(Ordering::Acquire) != OPEN))?;
        let rollback_mode = mode.clone();
        // From here on the fence that was checked protects nothing. A savepoint would begin another
        // transaction, and we would commit that one; so what a closure does after this is not kept.
        connection.rollback_hook(Some(move || {
            let _ =
                rollback_mode.compare_exchange(CLOSURE, ENDED, Ordering::AcqRel, Ordering::Acquire);
        }))?;
        Ok(Self { mode })
    }

    /// Watches until the answer is dropped, also while unwinding.
    pub(crate) fn watch(&self) -> Watch<'_> {
        self.mode.store(CLOSURE, Ordering::Release);
        Watch { guard: self }
    }
}

/// While it lives, a closure runs.
#[derive(Debug)]
pub(crate) struct Watch<'a> {
    guard: &'a Guard,
}

impl Watch<'_> {
    /// The transaction in which the fence was checked is over.
    pub(crate) fn has_ended(&self) -> bool {
        self.guard.mode.load(Ordering::Acquire) == ENDED
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.guard.mode.store(OPEN, Ordering::Release);
    }
}

fn is_ours(name: &str) -> bool {
    let starts = |prefix: &str| {
        name.get(..prefix.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(prefix))
    };
    starts(PREFIX) || starts("sqlite_autoindex_aster_")
}

fn is_refused(context: &AuthContext<'_>) -> bool {
    use AuthAction::{
        AlterTable, Analyze, Attach, CreateIndex, CreateTable, CreateTempIndex, CreateTempTable,
        CreateTempTrigger, CreateTempView, CreateTrigger, CreateView, CreateVtable, Delete, Detach,
        DropIndex, DropTable, DropTempIndex, DropTempTable, DropTempTrigger, DropTempView,
        DropTrigger, DropView, DropVtable, Function, Insert, Pragma, Read, Recursive, Reindex,
        Savepoint, Select, Update,
    };
    match context.action {
        Select | Recursive | Function { .. } | Savepoint { .. } => false,
        Pragma {
            pragma_name,
            pragma_value,
        } => !(pragma_name.eq_ignore_ascii_case(HARMLESS_PRAGMA) && pragma_value.is_none()),
        Attach { .. } | Detach { .. } => true,
        CreateTable { table_name: name }
        | CreateTempTable { table_name: name }
        | CreateView { view_name: name }
        | CreateTempView { view_name: name }
        | DropTable { table_name: name }
        | DropTempTable { table_name: name }
        | DropView { view_name: name }
        | DropTempView { view_name: name }
        | CreateVtable {
            table_name: name, ..
        }
        | DropVtable {
            table_name: name, ..
        }
        | AlterTable {
            table_name: name, ..
        }
        | Read {
            table_name: name, ..
        }
        | Update {
            table_name: name, ..
        }
        | Insert { table_name: name }
        | Delete { table_name: name }
        | Analyze { table_name: name }
        | Reindex { index_name: name } => is_ours(name),
        CreateIndex {
            index_name: name,
            table_name,
        }
        | CreateTempIndex {
            index_name: name,
            table_name,
        }
        | DropIndex {
            index_name: name,
            table_name,
        }
        | DropTempIndex {
            index_name: name,
            table_name,
        }
        | CreateTrigger {
            trigger_name: name,
            table_name,
        }
        | CreateTempTrigger {
            trigger_name: name,
            table_name,
        }
        | DropTrigger {
            trigger_name: name,
            table_name,
        }
        | DropTempTrigger {
            trigger_name: name,
            table_name,
        } => is_ours(name) || is_ours(table_name),
        // BEGIN, COMMIT, ROLLBACK, and whatever a later SQLite adds.
        _ => true,
    }
}
