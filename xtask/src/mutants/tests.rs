use super::accepted::Accepted;
use super::report::Report;
use super::tool::{Mutant, Verdict};
use super::wish::Wish;
use super::{TARGETS, shards};

const LINE: &str = "if a < b || b < c {";

/// The change of the `number`th `<` of [`LINE`].
fn mutant(file: &str, number: usize) -> Mutant {
    let (at, _) = LINE.match_indices('<').nth(number).unwrap();
    Mutant::new(
        &TARGETS[0],
        file.to_owned(),
        format!("{file}:7:{at}: replace < with <= in order"),
        "replace < with <= in order".to_owned(),
        LINE,
        at + 1,
    )
}

fn entry(at: &str) -> Accepted {
    let text = format!(
        "# why\n\nsrc/a.rs: replace < with <= in order\n  at: {at}\n    Never\n    equal.\n"
    );
    Accepted::parse(&text).unwrap()
}

fn report<'a>(all: &'a [Mutant], accepted: &'a Accepted) -> Report<'a> {
    Report::new(&Wish::parse(&[]).unwrap(), all, accepted)
}

#[test]
fn an_accepted_change_is_known_by_its_line_wherever_it_moves() {
    let all = [mutant("src/a.rs", 0)];
    let accepted = entry(LINE);
    assert_eq!(accepted.stale(&all).count(), 0);
    let mut report = report(&all, &accepted);
    report.add(all[0].name(), Verdict::Survived).unwrap();
    assert!(report.evidence().is_sound());
    assert!(entry("if a < b {").find(&all[0]).is_none(), "another line");
    assert!(
        accepted.find(&mutant("src/b.rs", 0)).is_none(),
        "another file"
    );
}

#[test]
fn one_entry_never_accepts_two_changes() {
    let all = [mutant("src/a.rs", 0), mutant("src/a.rs", 1)];
    assert_eq!(entry(LINE).stale(&all).count(), 1);
    let second = entry("< c {");
    assert_eq!(second.stale(&all).count(), 0);
    assert!(second.find(&all[0]).is_none() && second.find(&all[1]).is_some());
}

#[test]
fn what_is_not_explained_or_not_true_any_more_is_not_sound() {
    let all = [mutant("src/a.rs", 0)];
    let nothing = Accepted::parse("# nothing\n").unwrap();
    let mut unexplained = report(&all, &nothing);
    unexplained.add(all[0].name(), Verdict::Survived).unwrap();
    let evidence = unexplained.evidence();
    assert!(!evidence.is_sound());
    assert!(
        evidence.broken[0].contains("cargo xtask mutants src/a.rs"),
        "{evidence}"
    );
    assert!(evidence.held.is_empty());

    let gone = entry("if a < z {");
    assert!(
        !report(&all, &gone).evidence().is_sound(),
        "it accepts what does not exist"
    );
    let accepted = entry(LINE);
    let mut noticed = report(&all, &accepted);
    noticed.add(all[0].name(), Verdict::Failed).unwrap();
    assert!(
        !noticed.evidence().is_sound(),
        "a test notices it after all"
    );
}

#[test]
fn every_verdict_is_counted_as_what_it_is() {
    let all: Vec<Mutant> = (0..4)
        .map(|number| mutant(&format!("src/{number}.rs"), 0))
        .collect();
    let nothing = Accepted::parse("").unwrap();
    let mut report = report(&all, &nothing);
    for (mutant, verdict) in all
        .iter()
        .zip([Verdict::Failed, Verdict::TimedOut, Verdict::Unviable])
    {
        report.add(mutant.name(), verdict).unwrap();
    }
    let evidence = report.evidence();
    let times: Vec<u64> = evidence.tried.iter().map(|(_, times)| *times).collect();
    assert_eq!(times, [3, 1, 1, 1, 0, 0]);
    assert!(evidence.is_sound());
    assert!(
        evidence.not_covered[0].starts_with("1 of the 4 mutants"),
        "{evidence}"
    );
}

#[test]
fn an_entry_without_its_reason_or_its_line_is_refused() {
    for text in [
        "src/a.rs: replace\n  at: x\n",
        "src/a.rs: replace\n    because\n",
        "  at: x\n    because\n",
        "    because\n",
        "src/a.rs\n  at: x\n    because\n",
    ] {
        assert!(Accepted::parse(text).is_err(), "{text}");
    }
}

#[test]
fn a_seed_repeats_its_order_and_nothing_is_lost_in_it() {
    let wish = |words: &[&str]| {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        Wish::parse(&words)
    };
    let order = |seed: &str| {
        let mut numbers: Vec<u32> = (0..100).collect();
        wish(&["--seed", seed]).unwrap().shuffle(&mut numbers);
        numbers
    };
    assert_eq!(order("7"), order("7"));
    assert_ne!(order("7"), order("8"));
    let mut sorted = order("7");
    sorted.sort_unstable();
    assert_eq!(sorted, (0..100).collect::<Vec<u32>>());

    let one = wish(&["--core", "fence.rs", "--seconds", "9", "--seed", "3"]).unwrap();
    assert_eq!(
        one.command(),
        "cargo xtask mutants --core --seconds 9 --seed 3 fence.rs"
    );
    assert!(one.is_wanted(&mutant("crates/aster-core/src/fence.rs", 0)));
    assert!(!one.is_wanted(&mutant("crates/aster-core/src/conference.rs", 0)));
    assert!(wish(&["--cores"]).unwrap_err().contains("--cores"));
    assert!(wish(&["--seed"]).is_err());
}

#[test]
fn every_wanted_file_is_in_every_shard_and_no_other_crate_is() {
    let mut all: Vec<Mutant> = (0..20).map(|_| mutant("src/a.rs", 0)).collect();
    all.push(mutant("src/b.rs", 0));
    let wish = Wish::parse(&["a.rs".to_owned()]).unwrap();
    let choices: Vec<_> = shards(&TARGETS[0], &wish, &all)
        .into_iter()
        .map(|shard| shard.choice.join(" "))
        .collect();
    assert_eq!(
        choices,
        [0, 1, 2].map(|number| format!("--shard={number}/3 --sharding=slice --file=src/a.rs"))
    );
    assert!(shards(&TARGETS[1], &wish, &all).is_empty());
}
