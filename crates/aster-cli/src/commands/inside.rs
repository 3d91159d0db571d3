//! `put`, `get` and `fence` inside a run: asked of the run, over its socket.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use aster::lease::{Fence, InvalidInput, ResourceName, SystemEntropy, entropy};
use serde::Serialize;

use super::read::Register;
use crate::arguments::PutArguments;
use crate::context::Context;
use crate::failure::{Failure, FailureKind};
use crate::output::one_line;
use crate::socket::client::{ask, unexpected};
use crate::socket::frame::{Answer, BODY_BYTES_MAX, Request};

#[derive(Debug, Serialize)]
struct Written {
    resource: ResourceName,
    value_revision: u64,
    epoch: u64,
}

pub(crate) fn put(context: &Context, arguments: &PutArguments) -> Result<(), Failure> {
    let value = value_of(arguments)?;
    if value.len() > BODY_BYTES_MAX {
        return Err(InvalidInput::ValueTooLarge {
            bytes: value.len(),
            bytes_max: BODY_BYTES_MAX,
        }
        .into());
    }
    let write_id = entropy::write_id(&SystemEntropy)
        .map_err(|error| Failure::new(FailureKind::Internal, error.to_string()))?;
    let request = Request::Put {
        expect: arguments
            .expect
            .map_or(crate::socket::frame::Expect::Any, Into::into),
        write_id,
    };
    match ask("put", &request, &value)? {
        (
            Answer::Written {
                resource,
                value_revision,
                epoch,
            },
            _,
        ) => {
            let written = Written {
                resource,
                value_revision,
                epoch,
            };
            // Silence is success, as for any command that writes.
            context.output.answer(&written, |_| String::new())
        }
        (answer, _) => Err(unexpected(&answer)),
    }
}

fn value_of(arguments: &PutArguments) -> Result<Vec<u8>, Failure> {
    match (&arguments.value, &arguments.file) {
        (_, Some(path)) => {
            let failed = |error| Failure::io(format!("cannot read {}", path.display()), &error);
            read_bounded(File::open(path).map_err(failed)?, path)
        }
        (Some(dash), None) if dash == OsStr::new("-") => {
            read_bounded(io::stdin().lock(), Path::new("standard input"))
        }
        (Some(value), None) => Ok(value.as_bytes().to_vec()),
        (None, None) => Err(Failure::new(FailureKind::Usage, "no value")),
    }
}

/// Reads one byte more than is allowed, so that too much is noticed and never kept.
fn read_bounded(reader: impl Read, name: &Path) -> Result<Vec<u8>, Failure> {
    let mut value = Vec::new();
    reader
        .take(BODY_BYTES_MAX as u64 + 1)
        .read_to_end(&mut value)
        .map_err(|error| Failure::io(format!("cannot read {}", name.display()), &error))?;
    Ok(value)
}

/// The register of the run's own resource.
pub(crate) fn get() -> Result<Register, Failure> {
    match ask("get", &Request::Get, &[])? {
        (
            Answer::Value {
                resource,
                value_revision,
                epoch,
            },
            value,
        ) => Ok(Register::new(resource, value, value_revision, epoch)),
        (Answer::Absent { resource }, _) => Err(Register::nothing_written(&resource)),
        (answer, _) => Err(unexpected(&answer)),
    }
}

pub(crate) fn fence(context: &Context) -> Result<(), Failure> {
    match ask("fence", &Request::Fence, &[])? {
        (Answer::Fence { fence }, _) => context.output.answer(&fence, |_| lines(&fence)),
        (answer, _) => Err(unexpected(&answer)),
    }
}

fn lines(fence: &Fence) -> String {
    format!(
        "authority {}\nresource  {}\nepoch     {}\nholder    {}",
        fence.authority,
        one_line(&fence.resource),
        fence.epoch,
        one_line(&fence.holder)
    )
}
