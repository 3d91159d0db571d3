//! The programs that a proof consists of, how each is called, and how much of the time it gets.

/// One program.
pub(crate) struct Part {
    /// One word, as its evidence names it.
    pub(crate) name: &'static str,
    /// What it does, for `--list`.
    pub(crate) what: &'static str,
    pub(crate) program: Program,
    /// Its share of the time that all get. 0: it takes the time that it takes.
    pub(crate) share: u64,
}

/// Where a program is.
pub(crate) enum Program {
    /// The workspace's tests, read as they print.
    Tests,
    /// The program of a package.
    Package(&'static str),
    /// The example `evidence` of a package.
    Example(&'static str),
    /// A chore of this program.
    Chore(&'static str),
}

/// The quick ones first, so that a store that is plainly wrong is seen at once.
pub(crate) const PARTS: [Part; 9] = [
    Part {
        name: "tests",
        what: "every test of the workspace",
        program: Program::Tests,
        share: 0,
    },
    Part {
        name: "conformance",
        what: "one suite of cases on every store, and on stores that are broken on purpose",
        program: Program::Example("aster-conformance"),
        share: 0,
    },
    Part {
        name: "model",
        what: "every order of events up to a bound, over the real rules",
        program: Program::Package("aster-model"),
        share: 4,
    },
    Part {
        name: "sim",
        what: "seeded worlds of machines and faults, around the real engine",
        program: Program::Package("aster-sim"),
        share: 4,
    },
    Part {
        name: "interleavings",
        what: "the order in which threads take each other's locks",
        program: Program::Chore("interleavings"),
        share: 3,
    },
    Part {
        name: "crash",
        what: "power cuts, kills and failing disks at every write and sync of a SQLite store",
        program: Program::Package("aster-crash"),
        share: 3,
    },
    Part {
        name: "processes",
        what: "real processes stopped and killed at random, their history checked",
        program: Program::Package("aster-processes"),
        share: 3,
    },
    Part {
        name: "fuzz",
        what: "whatever parses, fed with nonsense",
        program: Program::Package("aster-fuzz"),
        share: 2,
    },
    Part {
        name: "mutants",
        what: "the rules and the engine changed a bit at a time, under their own tests",
        program: Program::Chore("mutants"),
        share: 3,
    },
];

impl Program {
    /// The command that builds it, so that compiling does not count as proving.
    pub(crate) fn build(&self) -> Option<Vec<&'static str>> {
        let release = ["cargo", "build", "--release", "--locked", "--package"];
        match self {
            Program::Tests => Some(vec![
                "cargo",
                "test",
                "--quiet",
                "--workspace",
                "--locked",
                "--no-run",
            ]),
            Program::Package(package) => Some([&release[..], &[package]].concat()),
            Program::Example(package) => {
                Some([&release[..], &[package, "--example", "evidence"]].concat())
            }
            Program::Chore(_) => None,
        }
    }

    /// The command that runs it, as a person would type it.
    pub(crate) fn run(&self) -> Vec<&'static str> {
        let release = [
            "cargo",
            "run",
            "--quiet",
            "--release",
            "--locked",
            "--package",
        ];
        match self {
            Program::Tests => vec!["cargo", "test", "--workspace", "--locked", "--no-fail-fast"],
            Program::Package(package) => [&release[..], &[package, "--"]].concat(),
            Program::Example(package) => {
                [&release[..], &[package, "--example", "evidence", "--"]].concat()
            }
            Program::Chore(chore) => vec!["cargo", "xtask", chore],
        }
    }
}
