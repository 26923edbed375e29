//! What commands print: tables and sentences for people, JSON for programs. Knows no noun.
//!
//! A reader that goes away, such as `head`, is no failure: [`ReaderGone`] ends the command quietly.

use std::fmt::Display;
use std::io::{self, ErrorKind, IsTerminal as _, Write as _};

use comfy_table::{Table, presets};
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use switchboard_model::Timestamp;

/// Nobody reads the output any more.
#[derive(Debug, thiserror::Error)]
#[error("nobody reads the output")]
pub(crate) struct ReaderGone;

/// For whom a command prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Tables and sentences.
    People,
    /// JSON, as the API gives it.
    Programs,
}

impl Form {
    /// Prints rows: a table, or one array.
    pub(crate) fn list<T: Serialize, const COLUMNS: usize>(
        self,
        items: &[T],
        header: [&str; COLUMNS],
        row: impl Fn(&T) -> [String; COLUMNS],
    ) -> anyhow::Result<()> {
        if self == Self::Programs {
            return json(items);
        }
        let mut table = Table::new();
        table.load_preset(presets::NOTHING).set_header(header);
        for item in items {
            table.add_row(row(item).map(|cell| clean(&cell)));
        }
        print(table)
    }

    /// Prints one thing with all its fields.
    pub(crate) fn one<T: Serialize>(self, item: &T) -> anyhow::Result<()> {
        if self == Self::Programs {
            return json(item);
        }
        let mut table = Table::new();
        table.load_preset(presets::NOTHING);
        for (name, value) in fields("", &serde_json::value::to_raw_value(item)?) {
            table.add_row([name, clean(&value)]);
        }
        print(table)
    }

    /// Says what was done, and gives programs what the API answered.
    pub(crate) fn done<T: Serialize>(self, item: &T, sentence: impl Display) -> anyhow::Result<()> {
        if self == Self::Programs { json(item) } else { line(sentence) }
    }

    /// Says what was done where the API answers nothing.
    pub(crate) fn said(self, sentence: impl Display) -> anyhow::Result<()> {
        if self == Self::Programs { Ok(()) } else { line(sentence) }
    }
}

/// Prints a line.
pub(crate) fn line(text: impl Display) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    written(writeln!(out, "{text}").and_then(|()| out.flush()))
}

/// Prints a value as JSON over several lines.
pub(crate) fn json<T: Serialize + ?Sized>(value: &T) -> anyhow::Result<()> {
    line(serde_json::to_string_pretty(value)?)
}

/// Prints a value as JSON on one line.
pub(crate) fn json_line<T: Serialize>(value: &T) -> anyhow::Result<()> {
    // A payload is verbatim and may hold line breaks, which in JSON can stand between tokens only.
    line(serde_json::to_string(value)?.replace(['\n', '\r'], " "))
}

/// Tells a person something about the work that goes on; nobody else needs it.
pub(crate) fn progress(text: impl Display) {
    if io::stderr().is_terminal() {
        warn(text);
    }
}

/// Tells, beside the output, what whoever uses it should know.
pub(crate) fn warn(text: impl Display) {
    // When standard error is closed, there is nobody to tell.
    let _ = writeln!(io::stderr(), "{text}");
}

/// Writes an instant as people read it.
pub(crate) fn time(at: Option<Timestamp>) -> String {
    at.map_or_else(absent, |at| at.format("%F %TZ").to_string())
}

/// Writes what may be absent.
pub(crate) fn maybe<T: Display>(value: Option<T>) -> String {
    value.map_or_else(absent, |value| value.to_string())
}

/// Takes out what would steer a terminal.
pub(crate) fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn print(mut table: Table) -> anyhow::Result<()> {
    if let Some(first) = table.column_mut(0) {
        first.set_padding((0, 1));
    }
    line(table.trim_fmt())
}

fn absent() -> String {
    "-".to_owned()
}

fn written(result: io::Result<()>) -> anyhow::Result<()> {
    match result {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(ReaderGone.into()),
        result => Ok(result?),
    }
}

/// Returns the fields of an object by their paths, in their order. It works on text, since payloads may be JSON that
/// no tree can hold.
fn fields(path: &str, value: &RawValue) -> Vec<(String, String)> {
    match serde_json::from_str::<Object>(value.get()) {
        Ok(Object(members)) if !members.is_empty() => {
            let name = |key: String| if path.is_empty() { key } else { format!("{path}.{key}") };
            members.into_iter().flat_map(|(key, value)| fields(&name(key), &value)).collect()
        }
        _ => vec![(path.to_owned(), leaf(value.get()))],
    }
}

fn leaf(json: &str) -> String {
    match json {
        "null" => absent(),
        text => serde_json::from_str::<String>(text).unwrap_or_else(|_| text.to_owned()),
    }
}

/// A JSON object whose values stay text.
struct Object(Vec<(String, Box<RawValue>)>);

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = Object;

            fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                out.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Object(members))
            }
        }
        deserializer.deserialize_map(Members)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_named_by_their_paths_and_keep_what_no_tree_can_hold() {
        let raw = RawValue::from_string(r#"{"b":{"x":"t","y":null},"a":[1, 2],"p":{"l":"\ud800"},"e":{}}"#.to_owned());
        let fields = fields("", &raw.unwrap());
        let fields: Vec<_> = fields.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(fields, [("b.x", "t"), ("b.y", "-"), ("a", "[1, 2]"), ("p.l", r#""\ud800""#), ("e", "{}")]);
    }

    #[test]
    fn nothing_that_steers_a_terminal_is_printed() {
        assert_eq!(clean("a\u{1b}[31m\u{9b}b"), "a [31m b");
    }
}
