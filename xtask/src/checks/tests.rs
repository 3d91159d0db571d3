use std::path::{Path, PathBuf};

use super::{Finding, length, links, manifests, names, quotes, words};
use crate::repository::Repository;

/// A repository of these files in a directory of its own, removed at the end.
struct Sample {
    root: PathBuf,
    repository: Repository,
}

impl Sample {
    fn new(name: &str, files: &[(&str, &str)]) -> Self {
        let root = std::env::temp_dir().join(format!("aster-xtask-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&root).unwrap();
        let repository = Repository::made_of(Path::new(&root), files);
        Self { root, repository }
    }
}

impl Drop for Sample {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

fn found(findings: &[Finding]) -> Vec<String> {
    findings.iter().map(Finding::to_string).collect()
}

/// What pages promise about code, links and wording holds for this repository itself.
#[test]
fn the_repository_passes_its_own_file_checks() {
    let repository = Repository::find().unwrap();
    for check in [
        words::check,
        length::check,
        manifests::check,
        links::check,
        names::check,
        quotes::check,
    ] {
        assert_eq!(found(&check(&repository)), Vec::<String>::new());
    }
}

#[test]
fn words_finds_build_paths_and_tracker_numbers() {
    let build_path = ["see /ho", "me/someone/aster"].concat();
    let number = ["as is", "sue 7 says"].concat();
    let text = format!("fine: ~/aster, an issue of 2 kinds\n{build_path}\n{number}\n");
    let sample = Sample::new("words", &[("a.md", &text)]);
    let lines: Vec<usize> = words::check(&sample.repository)
        .iter()
        .map(|it| it.line)
        .collect();
    assert_eq!(lines, [2, 3]);
}

#[test]
fn length_accepts_the_bound_and_refuses_one_more() {
    let longest = "//\n".repeat(length::FILE_LINES_MAX);
    let too_long = format!("{longest}//\n");
    let sample = Sample::new("length", &[("a.rs", &longest), ("b.rs", &too_long)]);
    let paths: Vec<String> = length::check(&sample.repository)
        .into_iter()
        .map(|it| it.path)
        .collect();
    assert_eq!(paths, ["b.rs"]);
}

#[test]
fn manifests_names_what_is_missing() {
    let manifest = "[package]\nname = \"x\"\nversion.workspace = true\nedition.workspace = true\n\
                    rust-version.workspace = true\ndescription = \"x\"\npublish = false\n\
                    [dependencies]\nlicense = \"1\"\n";
    let sample = Sample::new("manifests", &[("crates/x/Cargo.toml", manifest)]);
    assert_eq!(
        found(&manifests::check(&sample.repository)),
        [
            "crates/x/Cargo.toml: [package] has no `license`",
            "crates/x/Cargo.toml: no `[lints]` with `workspace = true`",
        ]
    );
}

#[test]
fn links_must_lead_to_a_file_and_a_heading() {
    let page = "[good](b.md#two-words), [web](https://example.org/x), [up](../README.md)\n\
                [no file](c.md)\n[no heading](b.md#three)\n```\n[code](nowhere.md)\n```\n";
    let sample = Sample::new(
        "links",
        &[
            ("README.md", "# Top\n"),
            ("docs/a.md", page),
            ("docs/b.md", "## Two `words`\n"),
        ],
    );
    assert_eq!(
        found(&links::check(&sample.repository)),
        [
            "docs/a.md:2: link to `c.md`: no such file",
            "docs/a.md:3: link to `b.md#three`: no such heading",
        ]
    );
}

#[test]
fn quotes_are_compared_and_rewritten() {
    let source = "fn main() {\n    // begin: part\n    if true {\n        go();\n    }\n    \
                  // end: part\n}\n";
    let page = "text\n<!-- quote: x.rs#part -->\n```rust\nold\n```\nmore\n";
    let sample = Sample::new("quotes", &[("x.rs", source), ("a.md", page)]);
    assert_eq!(
        found(&quotes::check(&sample.repository)),
        ["a.md:4: the quoted code differs from its source"]
    );
    assert_eq!(quotes::rewrite(&sample.repository).unwrap(), ["a.md"]);
    assert_eq!(
        sample.repository.read("a.md").unwrap(),
        "text\n<!-- quote: x.rs#part -->\n```rust\nif true {\n    go();\n}\n```\nmore\n"
    );
    assert_eq!(quotes::check(&sample.repository), []);
}

#[test]
fn a_quote_of_a_missing_part_is_found() {
    let page = "<!-- quote: x.rs#none -->\n```rust\n```\n";
    let sample = Sample::new("missing", &[("x.rs", "fn main() {}\n"), ("a.md", page)]);
    assert_eq!(
        found(&quotes::check(&sample.repository)),
        ["a.md:1: x.rs has no line `// begin: none`"]
    );
}

#[test]
fn names_in_pages_must_exist() {
    let page = "`memory/shard.rs` and `shard.rs::enter`, `b.rs::generic`\n`gone.rs`\n\
                `shard.rs::gone`\n`ard.rs`, `not a file.rs::`\n";
    let sample = Sample::new(
        "names",
        &[
            ("a.md", page),
            ("src/memory/shard.rs", "fn enter() {}\n"),
            ("b.rs", "pub fn generic<T>() {}\n"),
        ],
    );
    assert_eq!(
        found(&names::check(&sample.repository)),
        [
            "a.md:2: `gone.rs`: no such source file",
            "a.md:3: `shard.rs::gone`: that file defines no such function",
            "a.md:4: `ard.rs`: no such source file",
            "a.md:4: `not a file.rs::`: no such source file",
        ]
    );
}

#[test]
fn a_table_of_rules_names_what_there_is_and_explains_its_gaps() {
    let head = "| rule | enforced by | model | simulation | conformance and tests |\n|---|---|---|---|---|\n";
    let page = format!(
        "{head}| a | `b.rs::b` | `it holds` | `grows` | `a_case`, `b.rs::b` |\n\ntext\n\
         {head}| a | `b.rs::b` | `it fails` | `shrinks` | `no_case` |\n\n— why\n\
         {head}| a | `b.rs::b` | — | `grows` | `a_case` |\n\ntext\n\
         {head}| a | b | — |  | `a_case` |\n\n— why\n"
    );
    let sample = Sample::new(
        "rules",
        &[
            ("a.md", &page),
            ("b.rs", "fn b() {}\n"),
            ("verify/model/src/model.rs", "[\"it holds\",]\n"),
            ("verify/sim/src/invariants/grows.rs", ""),
            ("verify/conformance/src/c.rs", "async fn a_case<H>() {}\n"),
        ],
    );
    assert_eq!(
        found(&names::check(&sample.repository)),
        [
            "a.md:8: `it fails`: the model has no such property",
            "a.md:8: `shrinks`: the simulation has no such invariant",
            "a.md:8: `no_case`: the conformance suites have no such case",
            "a.md:14: no paragraph with — says why cells are empty",
            "a.md:18: nothing enforces or shows this rule",
            "a.md:18: an empty cell: say — and why below",
        ]
    );
}
