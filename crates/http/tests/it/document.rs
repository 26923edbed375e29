//! The OpenAPI document as a judge: every exchange of every test must be one that the document describes.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use jsonschema::Validator;
use parking_lot::Mutex;
use serde_json::{Value, json};
use switchboard_http::{ROUTES, openapi_document};

use crate::harness::Answer;

/// The document.
pub(crate) static DOCUMENT: LazyLock<Value> = LazyLock::new(openapi_document);

/// Checks an exchange, unless the router has no such route.
pub(crate) fn judge(method: &str, address: &str, body: &str, answer: &Answer) {
    let path = address.split('?').next().unwrap();
    let Some(template) = template_of(path) else { return };
    let place = format!("/paths/{}/{}", escaped(template), method.to_ascii_lowercase());
    let Some(operation) = DOCUMENT.pointer(&place) else { return };
    if answer.status == 404 && answer.text().contains("there is no such route") {
        return;
    }
    let said = format!("{method} {address} gave {} {}", answer.status, answer.text());
    let status = answer.status.to_string();
    let mut place_of_answer = format!("{place}/responses/{status}");
    let mut response = operation["responses"].get(&status).unwrap_or_else(|| panic!("{said}: not documented"));
    if let Some(reference) = response["$ref"].as_str() {
        place_of_answer = reference.strip_prefix('#').unwrap().to_owned();
        response = DOCUMENT.pointer(&place_of_answer).unwrap();
    }
    let media_type = answer.header("content-type").unwrap_or_default().split(';').next().unwrap();
    match response.get("content").and_then(Value::as_object) {
        Some(content) => {
            assert!(content.contains_key(media_type), "{said}: {media_type} is not documented");
            if let Some(value) = value_of(&answer.body).filter(|_| is_json(media_type)) {
                validate(&format!("{place_of_answer}/content/{}/schema", escaped(media_type)), &value, &said);
            }
        }
        None => assert!(answer.body.is_empty(), "{said}: a body is not documented"),
    }
    if let Some(value) = value_of(body.as_bytes()).filter(|_| answer.status < 300) {
        let schema = format!("{place}/requestBody/content/application~1json/schema");
        if DOCUMENT.pointer(&schema).is_some() {
            validate(&schema, &value, &format!("{said} for {body}"));
        }
    }
}

fn is_json(media_type: &str) -> bool {
    ["/json", "+json"].iter().any(|end| media_type.ends_with(end))
}

/// Decodes JSON, unless it is such that only its text can be kept: with one half of a surrogate pair, say.
fn value_of(body: &[u8]) -> Option<Value> {
    serde_json::from_slice(body).ok()
}

/// Checks a value against the schema at a place of the document.
pub(crate) fn validate(place: &str, value: &Value, said: &str) {
    let validator = validator(place);
    let errors: Vec<String> = validator.iter_errors(value).map(|error| error.to_string()).collect();
    assert!(errors.is_empty(), "{said}: {place}: {errors:?}");
}

fn validator(place: &str) -> Arc<Validator> {
    static KNOWN: LazyLock<Mutex<HashMap<String, Arc<Validator>>>> = LazyLock::new(Mutex::default);
    let mut known = KNOWN.lock();
    let made = known.entry(place.to_owned()).or_insert_with(|| {
        let schema = DOCUMENT.pointer(place).unwrap();
        let root = json!({"allOf": [schema], "components": DOCUMENT["components"]});
        Arc::new(jsonschema::options().should_validate_formats(true).build(&root).unwrap())
    });
    Arc::clone(made)
}

/// Finds the path of the document that a path of an address is an instance of; literal parts win.
fn template_of(path: &str) -> Option<&'static str> {
    let parts: Vec<&str> = path.split('/').collect();
    let fits = |template: &&str| {
        let of_template: Vec<&str> = template.split('/').collect();
        let is_as_long = match of_template.len().cmp(&parts.len()) {
            Ordering::Equal => true,
            // The last parameter of some routes takes the rest of the path.
            Ordering::Less => {
                ROUTES.iter().any(|route| route.path.replace("{*", "{") == **template && route.path.contains("{*"))
            }
            Ordering::Greater => false,
        };
        is_as_long
            && of_template
                .iter()
                .zip(&parts)
                .all(|(wanted, part)| wanted == part || (wanted.starts_with('{') && !part.is_empty()))
    };
    let templates = DOCUMENT["paths"].as_object().unwrap().keys().map(String::as_str);
    templates.filter(fits).min_by_key(|template| template.matches('{').count())
}

/// Writes a name as a part of a JSON pointer.
pub(crate) fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}
