//! Every target on its committed inputs and on mutations of them, by a fixed seed and a fresh one.

use aster_fuzz::runner::{Until, search};
use aster_fuzz::{corpus, targets};
use aster_lease::{Entropy, SystemEntropy};

/// Always the same.
const FIXED_SEED: u64 = 7;

#[test]
fn every_target_holds_on_its_corpus_and_on_mutations_of_it() {
    let mut bytes = [0; 4];
    SystemEntropy.fill(&mut bytes).unwrap();
    let fresh_seed = u64::from(u32::from_le_bytes(bytes));
    println!("seeds {FIXED_SEED} and {fresh_seed}");
    let mut failures = Vec::new();
    for target in &targets::ALL {
        let committed = corpus::load(target).len() as u64;
        assert!(committed > 0, "{} has no corpus", target.name);
        for seed in [FIXED_SEED, fresh_seed] {
            let until = Until::Executions(committed + target.executions);
            let report = search(target, target.run, seed, until);
            println!(
                "{:<13} {:>6} runs, {} outcomes",
                target.name, report.executions, report.outcomes
            );
            failures.extend(report.failure.map(|failure| failure.to_string()));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
