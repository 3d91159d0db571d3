//! The suite of a serializer: who owns what, under which epoch.

mod claims;
mod grants;
mod queue;
mod rows;
mod time;
mod watch;

use crate::harness::Harness;
use crate::report::Report;
use crate::rule::Rule;

/// Checks a serializer against the rules of ownership changes (specification, "Connect the grant to
/// enforcement").
pub async fn serializer_suite<H: Harness>(harness: &H) -> Report {
    let mut report = Report::new("serializer");
    grants::cases(harness, &mut report).await;
    rows::cases(harness, &mut report).await;
    time::cases(harness, &mut report).await;
    queue::cases(harness, &mut report).await;
    claims::cases(harness, &mut report).await;
    watch::cases(harness, &mut report).await;
    report
}

/// Runs the named cases of a file, each with its rule.
macro_rules! run_cases {
    ($harness:expr, $report:expr, $($rule:ident: $case:ident,)*) => {
        $($report.case($harness, stringify!($case), Rule::$rule, $case($harness)).await;)*
    };
}
pub(crate) use run_cases;
