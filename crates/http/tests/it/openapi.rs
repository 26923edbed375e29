//! The OpenAPI document itself. That it is true is found out by all other tests: see the module `document`.

use std::collections::BTreeSet;

use serde_json::Value;
use switchboard_http::ROUTES;

use crate::document::{DOCUMENT, escaped, validate};
use crate::harness::Replica;

/// Calls `visit` with every value of the document and its place.
fn walk(place: &str, value: &Value, visit: &mut impl FnMut(&str, &Value)) {
    visit(place, value);
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(name, value)| walk(&format!("{place}/{}", escaped(name)), value, visit));
        }
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(index, value)| walk(&format!("{place}/{index}"), value, visit));
        }
        _ => {}
    }
}

/// Returns each operation with its path and method.
fn operations() -> Vec<(&'static str, &'static str, &'static Value)> {
    let paths = DOCUMENT["paths"].as_object().unwrap();
    let of_path = |(path, methods): (&'static String, &'static Value)| {
        let methods = methods.as_object().unwrap();
        methods.iter().map(move |(method, operation)| (path.as_str(), method.as_str(), operation))
    };
    paths.iter().flat_map(of_path).collect()
}

#[tokio::test]
async fn the_document_is_served_to_everybody() {
    let replica = Replica::boot().await;
    let answer = replica.send("GET", "/openapi.json", "", &[]).await;
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));
    assert_eq!(answer.json(), *DOCUMENT);
}

#[test]
fn the_document_and_the_router_have_the_same_methods_and_paths() {
    let documented: BTreeSet<_> = operations().iter().map(|(path, method, _)| (*path, method.to_uppercase())).collect();
    let served: Vec<_> = ROUTES.iter().map(|route| (route.path.replace("{*", "{"), route.method.to_string())).collect();
    let served: BTreeSet<_> = served.iter().map(|(path, method)| (path.as_str(), method.clone())).collect();
    assert_eq!(documented, served);
}

#[test]
fn every_parameter_of_a_path_is_described() {
    for (path, method, operation) in operations() {
        let in_path: Vec<_> = path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}')).collect();
        let parameters = operation["parameters"].as_array().unwrap();
        let described: Vec<_> = parameters
            .iter()
            .filter(|parameter| parameter["in"] == "path" && parameter["schema"].is_object())
            .map(|parameter| parameter["name"].as_str().unwrap())
            .collect();
        assert_eq!(described, in_path, "{method} {path}");
    }
}

#[test]
fn every_operation_says_what_it_does_and_how_it_fails() {
    let mut ids = BTreeSet::new();
    for (path, method, operation) in operations() {
        let name = format!("{method} {path}");
        assert!(ids.insert(operation["operationId"].as_str().unwrap()), "{name}");
        assert!(operation["summary"].as_str().unwrap().ends_with('.'), "{name}");
        assert_eq!(operation["tags"].as_array().unwrap().len(), 1, "{name}");
        let statuses: Vec<&str> = operation["responses"].as_object().unwrap().keys().map(String::as_str).collect();
        assert!(statuses.iter().any(|status| *status < "300"), "{name}: no success in {statuses:?}");
        let is_open = operation["security"].as_array().unwrap().is_empty();
        let expected: &[&str] = if is_open { &["400", "500", "503"] } else { &["400", "401", "500", "503"] };
        assert!(expected.iter().all(|status| statuses.contains(status)), "{name}: {statuses:?}");
        let reads_json = operation.pointer("/requestBody/content/application~1json").is_some();
        assert!(!reads_json || ["400", "413", "415", "422"].iter().all(|status| statuses.contains(status)), "{name}");
    }
}

#[test]
fn every_reference_resolves() {
    walk("", &DOCUMENT, &mut |place, value| {
        if let Some(reference) = value.get("$ref").and_then(Value::as_str) {
            let target = reference.strip_prefix('#').and_then(|pointer| DOCUMENT.pointer(pointer));
            assert!(target.is_some(), "{place}: {reference}");
        }
    });
}

#[test]
fn every_example_and_default_is_a_value_of_its_schema() {
    walk("", &DOCUMENT, &mut |place, value| {
        let Some(fields) = value.as_object().filter(|_| !place.ends_with("/properties")) else { return };
        let examples = fields.get("examples").and_then(Value::as_array).into_iter().flatten();
        for example in examples.chain(fields.get("default")) {
            validate(place, example, "an example or default");
        }
    });
}

#[test]
fn descriptions_are_written_for_clients() {
    walk("", &DOCUMENT, &mut |place, value| {
        let is_for_programmers = |text: &str| text.contains("[`") || text.contains("::");
        assert!(!value.as_str().is_some_and(is_for_programmers), "{place}: {value}");
    });
}
