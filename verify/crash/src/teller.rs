//! How a process says something in the log of the disk that it works on.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use crate::disk::TOLD;
use crate::words::{Line, Word};

#[derive(Debug, Clone)]
pub(crate) struct Teller {
    told: Arc<File>,
    caller: String,
}

impl Teller {
    /// For the disk that is mounted at `directory`.
    pub(crate) fn new(directory: &Path, caller: String) -> io::Result<Self> {
        let told = File::options().write(true).open(directory.join(TOLD))?;
        Ok(Self {
            told: Arc::new(told),
            caller,
        })
    }

    /// For another caller of this process.
    pub(crate) fn of(&self, caller: String) -> Self {
        Self {
            told: self.told.clone(),
            caller,
        }
    }

    pub(crate) fn say(&self, word: Word) {
        let caller = self.caller.clone();
        self.say_line(&Line { caller, word });
    }

    pub(crate) fn say_line(&self, line: &Line) {
        // One write, so that it is one line. A disk that is gone hears nothing any more.
        let _ = (&*self.told).write_all(line.text().as_bytes());
    }
}
