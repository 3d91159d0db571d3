//! One harness for all invariants: the same random histories, run once under the real rules, judged
//! by every invariant; and run again under deliberately broken rules, which the invariant must catch.

mod history;
mod rules;
mod trace;
mod truth;
mod world;

use std::sync::OnceLock;

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

pub(crate) use history::{History, histories};
pub(crate) use rules::{RealRules, Rules};
pub(crate) use trace::{
    Announced, Asked, Event, FenceChecked, MarkAsk, RegisterWritten, Trace, asked, authority,
    fence_checks,
};
pub(crate) use truth::Owner;
pub(crate) use world::run;

/// How many times an invariant found its rule at work in a history, or how it was broken.
pub(crate) type Verdict = Result<usize, String>;

const HISTORIES_DEFAULT: usize = 1_000;
const SEED_DEFAULT: u64 = 0xA57E_0001;

/// The invariant holds in every history, and the histories exercise its rule.
pub(crate) fn holds(check: fn(&Trace) -> Verdict) {
    let mut seen = 0;
    for (history, trace) in real_traces() {
        match check(trace) {
            Ok(count) => seen += count,
            Err(broken) => panic!("{}", shrunk(check, history, &broken)),
        }
    }
    assert!(
        seen >= 100,
        "the histories exercise this rule only {seen} times"
    );
}

/// The control: with `broken` in place of the real rules, the invariant finds a violation.
pub(crate) fn catches(check: fn(&Trace) -> Verdict, broken: &dyn Rules) {
    let caught = real_traces()
        .iter()
        .find_map(|(history, _)| check(&run(history, broken)).err());
    assert!(caught.is_some(), "the broken rule was not caught");
}

/// The histories and what the real rules made of them, shared by all tests of the process. The same
/// in every run; `ASTER_HISTORIES` and `ASTER_HISTORIES_SEED` ask for more and for others.
fn real_traces() -> &'static [(History, Trace)] {
    static TRACES: OnceLock<Vec<(History, Trace)>> = OnceLock::new();
    TRACES.get_or_init(|| {
        let mut runner = seeded_runner();
        let strategy = histories();
        (0..from_environment("ASTER_HISTORIES").unwrap_or(HISTORIES_DEFAULT))
            .map(|_| {
                let history = strategy.new_tree(&mut runner).unwrap().current();
                let trace = run(&history, &RealRules);
                (history, trace)
            })
            .collect()
    })
}

fn seeded_runner() -> TestRunner {
    let seed: u64 = from_environment("ASTER_HISTORIES_SEED").unwrap_or(SEED_DEFAULT);
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config {
        failure_persistence: None,
        cases: u32::try_from(HISTORIES_DEFAULT).unwrap(),
        ..Config::default()
    };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
}

fn from_environment<T: std::str::FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok()?.parse().ok()
}

/// Looks for a small history with the same fault, for the report.
fn shrunk(check: fn(&Trace) -> Verdict, history: &History, broken: &str) -> String {
    let outcome = seeded_runner().run(&histories(), |history| {
        check(&run(&history, &RealRules))
            .map(|_| ())
            .map_err(TestCaseError::fail)
    });
    match outcome {
        Err(TestError::Fail(reason, small)) => {
            let trace = run(&small, &RealRules);
            format!("{reason}\nin this history: {small:#?}\nwhich went: {trace:#?}")
        }
        _ => format!("{broken}\nin this history: {history:#?}"),
    }
}
