//! The binary `aster`.

use std::process::ExitCode;

fn main() -> ExitCode {
    aster_cli::main()
}
