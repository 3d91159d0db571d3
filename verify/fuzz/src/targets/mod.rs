//! Every target and every control.

pub(crate) mod draw;
pub(crate) mod place;

mod command;
mod edits;
mod files;
mod json;
mod messages;
mod names;
mod printing;
mod restore;
mod rules;
mod store;
mod url;

use crate::Target;
use crate::control::Control;

/// Every target.
pub const ALL: [Target; 21] = [
    names::NAMES,
    names::IDS,
    json::JSON,
    json::HIGH_WATER,
    rules::RULES,
    rules::REGISTERS,
    url::URL,
    url::CONNECT,
    command::DURATION,
    command::COMMAND_LINE,
    command::ENVIRONMENT,
    messages::FRAMES,
    messages::ORDERS,
    messages::IDENTITY,
    messages::WAKE,
    printing::PRINTING,
    printing::KERNEL,
    files::ROWS,
    files::BYTES,
    restore::BACKUP,
    restore::ADOPT,
];

/// Every control.
pub fn controls() -> Vec<Control> {
    let mut controls = Vec::new();
    controls.extend(names::CONTROLS);
    controls.extend(json::CONTROLS);
    controls.extend(rules::CONTROLS);
    controls.extend(url::CONTROLS);
    controls.extend(command::CONTROLS);
    controls.extend(messages::CONTROLS);
    controls.extend(printing::CONTROLS);
    controls.extend(files::CONTROLS);
    controls.extend(restore::CONTROLS);
    controls
}

/// The target with this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Target> {
    ALL.iter().find(|target| target.name == name)
}
