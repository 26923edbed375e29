//! The reference of all settings, as Markdown, from their types. Knows no setting by name.

use std::fmt::Write as _;

use schemars::generate::SchemaSettings;
use serde_json::Value;

use super::Config;
use super::layers::PREFIX;

const HEAD: &str = "\
# Configuration

Settings come from a TOML file (`--config FILE` or `SWITCHBOARD_CONFIG`), from environment variables and from flags of
`switchboard serve`; later ones go over earlier ones, and an unknown one is an error. A list is an array of texts in a
file and one text with commas between in a variable. A duration is written as `500ms`, `15s`, `5m`, `2h 30m` or `7days`.

This page is made from the program: `switchboard reference configuration` prints it.
";

const TABLE: &str = "\n| key | variable | kind | default | meaning |\n|---|---|---|---|---|\n";

/// Returns the reference.
pub(crate) fn reference() -> String {
    let generator = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true).into_generator();
    let schema = generator.into_root_schema_for::<Config>().to_value();
    let mut page = HEAD.to_owned();
    let mut sections = Vec::new();
    page.push_str("\n## Top level\n");
    page.push_str(TABLE);
    rows(&mut page, &mut sections, "", &schema);
    for (key, section) in sections {
        // The types of sections are documented, so that each of them has a description.
        let about = section["description"].as_str().unwrap_or_default();
        let _ = write!(page, "\n## {key}\n\n{}\n{TABLE}", one_line(about));
        let mut inner = Vec::new();
        rows(&mut page, &mut inner, &format!("{key}."), section);
        for (key, table) in inner {
            rows(&mut page, &mut Vec::new(), &format!("{key}."), table);
        }
    }
    page
}

/// Writes one row for each setting of `table`, and puts aside the tables in it.
fn rows<'a>(page: &mut String, tables: &mut Vec<(String, &'a Value)>, prefix: &str, table: &'a Value) {
    for (name, schema) in table["properties"].as_object().into_iter().flatten() {
        let key = format!("{prefix}{name}");
        let kind = present(schema);
        if kind["properties"].is_object() {
            tables.push((key, kind));
            continue;
        }
        let variable = format!("{PREFIX}{}", key.to_ascii_uppercase().replace('.', "__"));
        let default = schema.get("default").map(shown).unwrap_or_default();
        let meaning = meaning(schema, kind).replace('|', "\\|");
        let _ = writeln!(page, "| `{key}` | `{variable}` | {} | {default} | {meaning} |", kind_of(kind));
    }
}

/// Returns the schema of a value that is there.
fn present(schema: &Value) -> &Value {
    let choices = schema["anyOf"].as_array();
    choices.and_then(|choices| choices.iter().find(|choice| choice["type"] != "null")).unwrap_or(schema)
}

fn kind_of(schema: &Value) -> String {
    if let Some(format) = schema["format"].as_str().filter(|format| !format.starts_with("uint")) {
        return format.to_owned();
    }
    let kind = match &schema["type"] {
        Value::Array(kinds) => kinds.iter().find(|kind| *kind != "null").and_then(Value::as_str),
        kind => kind.as_str(),
    };
    match kind {
        Some("array") => format!("list: {}", kind_of(&schema["items"])),
        Some("boolean") => "`true` or `false`".to_owned(),
        Some("integer") => "number".to_owned(),
        _ if schema["oneOf"].is_array() => choices(schema).map(|(text, _)| text).collect::<Vec<_>>().join(" or "),
        _ => "text".to_owned(),
    }
}

/// Returns the values of a closed list, each with its meaning.
fn choices(schema: &Value) -> impl Iterator<Item = (String, &str)> {
    let each = schema["oneOf"].as_array().into_iter().flatten();
    each.map(|choice| (shown(&choice["const"]), choice["description"].as_str().unwrap_or_default()))
}

fn meaning(schema: &Value, kind: &Value) -> String {
    let mut meaning = one_line(schema["description"].as_str().unwrap_or_default());
    for (text, about) in choices(kind) {
        let _ = write!(meaning, " {text}: {}", one_line(about));
    }
    meaning
}

fn shown(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) if text.is_empty() => String::new(),
        Value::String(text) => format!("`{text}`"),
        Value::Array(items) if items.is_empty() => "none".to_owned(),
        Value::Array(items) => items.iter().map(shown).collect::<Vec<_>>().join(", "),
        other => format!("`{other}`"),
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
