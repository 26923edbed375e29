//! Files that define tasks, read as JSON, TOML or YAML. Everything is read and checked before anything is done with it.

use std::path::Path;

use anyhow::{Context as _, anyhow, bail, ensure};
use serde::Deserialize;
use serde_json::value::RawValue;
use switchboard_model::Timestamp;
use switchboard_model::task::TaskSpec;

use super::standard_input;
use crate::cli::{DocumentFormat, Documents};

/// Reads the tasks of all files.
pub(super) fn read(documents: &Documents) -> anyhow::Result<Vec<TaskSpec>> {
    let mut specs: Vec<TaskSpec> = Vec::new();
    for path in &documents.files {
        let (name, text) = contents(path)?;
        let format = documents.format.unwrap_or_else(|| format_of(path, &text));
        for (index, spec) in tasks(format, &text).with_context(|| name.clone())?.iter().enumerate() {
            let spec = checked(spec).with_context(|| format!("{name}: task {}", index + 1))?;
            let is_double = specs.iter().any(|earlier| earlier.name == spec.name);
            ensure!(!is_double, "{name}: task {}: name: {} was defined before", index + 1, spec.name);
            specs.push(spec);
        }
    }
    ensure!(!specs.is_empty(), "there is no task in what was given");
    Ok(specs)
}

/// Returns what a file is called, and its text.
pub(super) fn contents(path: &Path) -> anyhow::Result<(String, String)> {
    if path.as_os_str() == "-" {
        return Ok(("standard input".to_owned(), standard_input()?));
    }
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {name}"))?;
    Ok((name, text))
}

fn format_of(path: &Path, text: &str) -> DocumentFormat {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("json") => DocumentFormat::Json,
        Some("toml") => DocumentFormat::Toml,
        Some("yaml" | "yml") => DocumentFormat::Yaml,
        // What is JSON is read as such, so that payloads stay as they are.
        _ if text.trim_start().starts_with(['{', '[']) => DocumentFormat::Json,
        _ => DocumentFormat::Yaml,
    }
}

/// Returns the tasks of a text, each as JSON.
fn tasks(format: DocumentFormat, text: &str) -> anyhow::Result<Vec<Box<RawValue>>> {
    let documents: Vec<Box<RawValue>> = match format {
        DocumentFormat::Json => {
            serde_json::Deserializer::from_str(text).into_iter().collect::<Result<_, _>>().context("not JSON")?
        }
        DocumentFormat::Toml => {
            let table: toml::Table = text.parse().context("not TOML")?;
            vec![raw(&json_of(toml::Value::Table(table)))?]
        }
        DocumentFormat::Yaml => {
            let documents: Vec<serde_json::Value> =
                serde_saphyr::from_multiple(text).map_err(|error| anyhow!("not YAML: {error}"))?;
            documents.iter().map(raw).collect::<anyhow::Result<_>>()?
        }
    };
    let mut tasks = Vec::new();
    for document in documents {
        tasks.extend(members(document)?);
    }
    Ok(tasks)
}

/// Takes apart a document: a list of tasks, a list under `tasks`, or one task.
fn members(document: Box<RawValue>) -> anyhow::Result<Vec<Box<RawValue>>> {
    #[derive(Deserialize)]
    struct Shape {
        tasks: Option<serde::de::IgnoredAny>,
    }
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Many {
        tasks: Vec<Box<RawValue>>,
    }
    if document.get().starts_with('[') {
        return Ok(serde_json::from_str(document.get())?);
    }
    let shape: Shape = serde_json::from_str(document.get()).context("not a task and not a list of tasks")?;
    match shape.tasks {
        None => Ok(vec![document]),
        Some(_) => Ok(serde_json::from_str::<Many>(document.get()).context("tasks")?.tasks),
    }
}

/// Reads a definition, and checks everything about it that does not depend on the time.
fn checked(task: &RawValue) -> anyhow::Result<TaskSpec> {
    let mut reader = serde_json::Deserializer::from_str(task.get());
    let spec: TaskSpec = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        // The position counts in the one task, which is not what the file shows.
        let message = error.inner().to_string();
        let message = message.split(" at line ").next().unwrap_or_default();
        match error.path().to_string().as_str() {
            "." => anyhow!("{message}"),
            path => anyhow!("{path}: {message}"),
        }
    })?;
    if let Err(error) = spec.clone().checked(Timestamp::UNIX_EPOCH) {
        bail!("{} ({})", error, spec.name);
    }
    Ok(spec)
}

fn raw(value: &serde_json::Value) -> anyhow::Result<Box<RawValue>> {
    Ok(serde_json::value::to_raw_value(value)?)
}

/// Turns TOML into JSON; its instants become text, as definitions have them.
fn json_of(value: toml::Value) -> serde_json::Value {
    match value {
        toml::Value::String(text) => text.into(),
        toml::Value::Integer(number) => number.into(),
        toml::Value::Float(number) => number.into(),
        toml::Value::Boolean(truth) => truth.into(),
        toml::Value::Datetime(instant) => instant.to_string().into(),
        toml::Value::Array(items) => items.into_iter().map(json_of).collect(),
        toml::Value::Table(table) => table.into_iter().map(|(key, value)| (key, json_of(value))).collect(),
    }
}

#[cfg(test)]
mod tests {
    use switchboard_model::task::Action;

    use super::*;

    const ACTION: &str =
        r#""action":{"event":{"to":{"room":"lobby"},"event":"tick","payload":{"b":1.0e5,"a":"\ud800"}}}"#;

    fn named(format: DocumentFormat, text: &str) -> anyhow::Result<Vec<TaskSpec>> {
        tasks(format, text)?.iter().map(|task| checked(task)).collect()
    }

    fn names(format: DocumentFormat, text: &str) -> Vec<String> {
        named(format, text).unwrap().iter().map(|spec| spec.name.to_string()).collect()
    }

    #[test]
    fn one_task_lists_and_several_documents_are_read() {
        let task = |name: &str| format!(r#"{{"name":"{name}",{ACTION}}}"#);
        let (a, b, c) = (task("a"), task("b"), task("c"));
        assert_eq!(names(DocumentFormat::Json, &a), ["a"]);
        assert_eq!(names(DocumentFormat::Json, &format!("[{a},{b}]{c}")), ["a", "b", "c"]);
        assert_eq!(names(DocumentFormat::Json, &format!(r#"{{"tasks":[{a},{b}]}}"#)), ["a", "b"]);
        let yaml = "name: a\naction: {system: {function: sweep}}\n---\ntasks:\n- name: b\n  action: {system: {function: sweep}}\n";
        assert_eq!(names(DocumentFormat::Yaml, yaml), ["a", "b"]);
        let toml = "[[tasks]]\nname = \"a\"\naction.system.function = \"sweep\"\nschedule.at = 2099-01-01T00:00:00Z\n";
        assert_eq!(names(DocumentFormat::Toml, toml), ["a"]);
    }

    #[test]
    fn payloads_of_json_stay_as_they_are() {
        let spec = named(DocumentFormat::Json, &format!(r#"{{"name":"a",{ACTION}}}"#)).unwrap().remove(0);
        let Action::Event(action) = spec.action else { panic!("an event action expected") };
        assert_eq!(action.payload.unwrap().as_str(), r#"{"b":1.0e5,"a":"\ud800"}"#);
    }

    #[test]
    fn errors_name_the_field() {
        let error = |text: &str| format!("{:#}", named(DocumentFormat::Yaml, text).unwrap_err());
        let action = "action: {system: {function: sweep}}";
        assert!(error(&format!("name: a\ncolour: red\n{action}")).contains("unknown field `colour`"));
        assert!(error(&format!("name: a\nschedule: {{every: {{interval: soon}}}}\n{action}")).contains("interval: "));
        assert!(error(&format!("name: a\nmax_attempts: 0\n{action}")).starts_with("max_attempts: "));
        assert!(
            error(&format!("name: a\nschedule: {{cron: {{expression: '0 0 30 2 *'}}}}\n{action}")).contains("never")
        );
        assert!(error("tasks: 5").contains("tasks"));
        assert!(error("just text").contains("not a task"));
    }
}
