//! The rule about SQL statements in the stores: each has a name, by which spans, metrics and people know it.

use super::literals::string_literals;
use super::source::{Finding, Source};

/// How a statement begins.
const KEYWORDS: [&str; 5] = ["SELECT", "INSERT", "UPDATE", "DELETE", "WITH"];

/// What statements are about, so that both stores call it the same: mostly the name of the store.
const AGGREGATES: [&str; 28] = [
    "api_keys",
    "audit",
    "auth_sessions",
    "calls",
    "connections",
    "feed",
    "fences",
    "hints",
    "instances",
    "leases",
    "limits",
    "migrations",
    "once",
    "outbox",
    "presence",
    "rooms",
    "runs",
    "sealed",
    "secrets",
    "server",
    "settings",
    "state",
    "streams",
    "tasks",
    "tickets",
    "tokens",
    "users",
    "webhooks",
];

/// Requires `-- aggregate.operation` as the first line of each statement.
pub(super) fn names_its_statements(sources: &[Source]) -> Vec<Finding> {
    let stores = sources.iter().filter(|source| source.is_rust() && source.path.starts_with("crates/store-"));
    let mut findings = Vec::new();
    for source in stores.filter(|source| !source.is_test()) {
        let product = source.product_lines().map(|(_, line)| line).collect::<Vec<_>>().join("\n");
        for literal in string_literals(&product) {
            if let Some(message) = fault(literal.text) {
                findings.push(Finding::new(&source.path, literal.line, message));
            }
        }
    }
    findings
}

/// Tells what is wrong with a literal, if it is a statement. A mere call, as of a lock function, reads no table and
/// needs no name.
fn fault(text: &str) -> Option<&'static str> {
    let text = text.trim_start();
    let first_word = text.split_whitespace().next()?;
    let is_call = first_word == "SELECT" && !text.contains('\n') && !text.contains(" FROM ");
    if KEYWORDS.contains(&first_word) && text.len() > first_word.len() && !is_call {
        return Some("open the statement with a line -- aggregate.operation");
    }
    let name = text.strip_prefix("--")?.lines().next()?.trim_end_matches("\\n\\").trim();
    (!is_name(name)).then_some(
        "the first line of a statement is its name: -- aggregate.operation, with an aggregate that xtask knows",
    )
}

fn is_name(text: &str) -> bool {
    let is_word =
        |word: &str| !word.is_empty() && word.chars().all(|letter| letter.is_ascii_lowercase() || letter == '_');
    text.split_once('.').is_some_and(|(aggregate, operation)| AGGREGATES.contains(&aggregate) && is_word(operation))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines_found(text: &str) -> usize {
        names_its_statements(&[Source::new("crates/store-pg/src/runs.rs", text)]).len()
    }

    #[test]
    fn a_statement_without_a_name_is_found() {
        assert_eq!(lines_found("query(\"SELECT 1 FROM runs\")"), 1);
        assert_eq!(lines_found("query(r#\"\n  WITH a AS (SELECT 1) SELECT 2\"#)"), 1);
    }

    #[test]
    fn a_name_of_another_form_is_found() {
        assert_eq!(lines_found("query(\"-- lease the runs\nSELECT 1\")"), 1);
        assert_eq!(lines_found("query(\"-- runs.Lease\nSELECT 1\")"), 1);
        assert_eq!(lines_found("query(\"-- run.lease\nSELECT 1\")"), 1);
    }

    #[test]
    fn named_statements_and_other_texts_are_fine() {
        assert_eq!(lines_found("query(\"-- runs.lease_ready\n SELECT 1\"); bail(\"SELECT\"); say(\"with care\")"), 0);
        assert_eq!(lines_found("query(\"SELECT pg_try_advisory_lock($1)\")"), 0);
        assert_eq!(lines_found("#[cfg(test)]\nmod tests {\n query(\"SELECT 1\")\n}"), 0);
    }
}
