//! Rules about what a line must not say, or must not say without a reason above it.

use super::source::{Finding, Source};

/// A text that must not stand in some files.
struct Unwanted {
    text: &'static str,
    is_about: fn(&Source) -> bool,
    instead: &'static str,
}

impl Unwanted {
    const fn anywhere(text: &'static str, instead: &'static str) -> Self {
        Self { text, is_about: |_| true, instead }
    }

    const fn in_rust(text: &'static str, instead: &'static str) -> Self {
        Self { text, is_about: Source::is_rust, instead }
    }
}

/// Written in two halves, so that this file keeps its own rule.
const UNWANTED: [Unwanted; 13] = [
    Unwanted::anywhere(concat!("TO", "DO"), "do it or leave it out"),
    Unwanted::anywhere(concat!("FIX", "ME"), "fix it or leave it out"),
    Unwanted::in_rust(concat!("todo", "!("), "nothing is stubbed"),
    Unwanted::in_rust(concat!("unimplemented", "!("), "nothing is stubbed"),
    Unwanted::in_rust(concat!("#[al", "low("), "use #[expect(…, reason)]"),
    Unwanted::in_rust(concat!("#![al", "low("), "use #![expect(…, reason)]"),
    Unwanted::in_rust(concat!("#[ig", "nore"), "a test runs or does not exist"),
    Unwanted::anywhere(concat!("/ho", "me/"), "no path of one person's machine"),
    Unwanted::anywhere(concat!("/Us", "ers/"), "no path of one person's machine"),
    Unwanted::anywhere(concat!("/wo", "rk/"), "no path of one person's machine"),
    Unwanted::anywhere(concat!("index.crates", ".io"), "no host of a package registry"),
    Unwanted::anywhere(concat!("registry.npm", "js"), "no host of a package registry"),
    Unwanted::anywhere(concat!("pypi", ".org"), "no host of a package registry"),
];

/// Requires that nothing unfinished, silenced or private is in the tree.
pub(super) fn holds_no_unwanted_words(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in sources.iter().filter(|source| source.path != "Cargo.lock") {
        let words = UNWANTED.iter().filter(|word| (word.is_about)(source)).collect::<Vec<_>>();
        for (number, line) in source.numbered() {
            let found = words.iter().filter(|word| line.contains(word.text));
            findings.extend(
                found.map(|word| Finding::new(&source.path, number, format!("{}: {}", word.text, word.instead))),
            );
        }
    }
    findings
}

/// Requires a comment with the proof above each place of the product that may panic on purpose.
pub(super) fn proves_what_it_expects(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in sources.iter().filter(|source| source.is_rust() && !source.is_test()) {
        let mut line_above = "";
        for (number, line) in source.product_lines() {
            let opens = line.trim_start().starts_with("#[expect(");
            let is_panic = line.contains("clippy::unwrap_used") || line.contains("clippy::expect_used");
            if opens && is_panic && !line_above.trim_start().starts_with("//") {
                findings.push(Finding::new(&source.path, number, "prove in a comment above that it cannot panic"));
            }
            line_above = line;
        }
    }
    findings
}

/// Requires that tests wait for what they need instead of for time to pass: they may sleep only between two looks at a
/// condition, where the clock is paused and jumps, or under a comment that says what the time stands for.
pub(super) fn waits_on_conditions(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in sources.iter().filter(|source| source.is_rust()) {
        let mut openers: Vec<(usize, &str)> = Vec::new();
        let mut is_clock_paused = false;
        let mut line_above = "";
        for (number, line) in source.test_lines().filter(|(_, line)| !line.trim().is_empty()) {
            let code = line.trim_start();
            let depth = line.len() - code.len();
            openers.retain(|(opened, _)| *opened < depth);
            if code.starts_with("#[") && code.contains("test") {
                is_clock_paused = code.contains("start_paused = true");
            }
            let is_fine = is_clock_paused
                || line_above.starts_with("//")
                || openers.iter().any(|(_, opener)| waits_between_looks(opener));
            let is_sleeping = code.match_indices(concat!("sleep", "(")).any(|(at, _)| !code[..at].ends_with('_'));
            if is_sleeping && !is_fine {
                findings.push(Finding::new(&source.path, number, "wait on a condition instead of sleeping"));
            }
            if code.ends_with('{') {
                openers.push((depth, code));
            }
            line_above = code;
        }
    }
    findings
}

/// Tells whether the block that `opener` opens is run again and again until a condition holds.
fn waits_between_looks(opener: &str) -> bool {
    opener.ends_with("loop {") || opener.starts_with("while ") || opener.contains("fn wait(")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unwanted_word_is_found_in_code_and_none_in_fine_code() {
        for word in &UNWANTED {
            let sources = [Source::new("crates/a/src/b.rs", &format!("//! Fine.\n{} x\n", word.text))];
            assert_eq!(holds_no_unwanted_words(&sources).len(), 1, "{}", word.text);
        }
        let fine = [Source::new("a.rs", "//! See the home page, `todo` lists and #[expect(dead_code)].\n")];
        assert_eq!(holds_no_unwanted_words(&fine), []);
    }

    #[test]
    fn words_of_rust_do_not_matter_in_prose() {
        let sources = [Source::new("a.md", concat!("never use #[al", "low(…)]\n"))];
        assert_eq!(holds_no_unwanted_words(&sources), []);
    }

    #[test]
    fn an_expected_panic_without_a_proof_is_found() {
        let bare = "use a;\n#[expect(clippy::expect_used, reason = \"r\")]\n";
        let proved = "//! x\n// It cannot be empty.\n#[expect(clippy::expect_used, reason = \"r\")]\n";
        let sources =
            [Source::new("a/src/a.rs", bare), Source::new("a/src/b.rs", proved), Source::new("a/tests/c.rs", bare)];
        assert_eq!(proves_what_it_expects(&sources).len(), 1);
    }

    #[test]
    fn a_sleeping_test_is_found_and_a_polling_loop_is_not() {
        let pause = concat!("sle", "ep(second);");
        let bare = format!("async fn a_test() {{\n    {pause}\n    if slow {{\n        {pause}\n    }}\n}}\n");
        let polling = format!("fn b() {{\n    let x = loop {{\n        look();\n\n        {pause}\n    }};\n}}\n");
        let virtual_time = format!("#[tokio::test(start_paused = true)]\nfn c() {{\n    {pause}\n}}\n#[test]\n{bare}");
        let path = "crates/a/tests/it/b.rs";
        assert_eq!(waits_on_conditions(&[Source::new(path, &bare)]).len(), 2);
        assert_eq!(waits_on_conditions(&[Source::new(path, &virtual_time)]).len(), 2);
        assert_eq!(waits_on_conditions(&[Source::new(path, &polling)]), []);
        assert_eq!(waits_on_conditions(&[Source::new("crates/a/src/b.rs", &bare)]), []);
    }
}
