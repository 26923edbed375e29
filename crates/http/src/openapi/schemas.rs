//! The schemas of the wire types: as requests are read, and as answers are written. Knows no operation.

use std::collections::BTreeSet;

use schemars::generate::{SchemaGenerator, SchemaSettings};
use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value};
use switchboard_model::wire::problem::Problem;

/// Makes the schema of a type; the generator keeps those that it refers to.
pub(crate) type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// What is added to the name of a type that is read differently than it is written.
const AS_INPUT: &str = "Input";

const FOLDER: &str = "#/components/schemas/";

/// The schemas of a document that is being made.
pub(crate) struct Schemas {
    requests: SchemaGenerator,
    answers: SchemaGenerator,
}

impl Schemas {
    pub(super) fn new() -> Self {
        let settings = || {
            SchemaSettings::draft2020_12().with(|settings| {
                settings.definitions_path = FOLDER.into();
                settings.meta_schema = None;
            })
        };
        Self {
            requests: settings().for_deserialize().into_generator(),
            answers: settings().for_serialize().into_generator(),
        }
    }

    /// Returns the schema of a type as it is read from a request.
    pub(super) fn request<T: JsonSchema>(&mut self) -> Value {
        self.requests.subschema_for::<T>().to_value()
    }

    /// Returns the schema of a type as it is read, itself instead of a reference to it.
    pub(super) fn whole_request<T: JsonSchema>(&mut self) -> Value {
        T::json_schema(&mut self.requests).to_value()
    }

    /// Returns the schema of a type as it is written, itself instead of a reference to it.
    pub(super) fn whole_answer<T: JsonSchema>(&mut self) -> Value {
        T::json_schema(&mut self.answers).to_value()
    }

    /// Returns the properties of a type that is read from the query of an address.
    pub(super) fn query<T: JsonSchema>(&mut self) -> Map<String, Value> {
        match T::json_schema(&mut self.requests).get_mut("properties") {
            Some(Value::Object(properties)) => std::mem::take(properties),
            _ => Map::new(),
        }
    }

    /// Returns the schema of a type as it is written into an answer.
    pub(super) fn answer(&mut self, schema_of: SchemaOf) -> Value {
        schema_of(&mut self.answers).to_value()
    }

    /// Returns the schema of a problem document.
    pub(super) fn problem(&mut self) -> Value {
        self.answer(SchemaGenerator::subschema_for::<Problem>)
    }

    /// Tells whether an empty object is a value of a request schema.
    pub(super) fn accepts_nothing(&self, schema: &Value) -> bool {
        let name = schema["$ref"].as_str().and_then(|text| text.strip_prefix(FOLDER));
        let schema = name.and_then(|name| self.requests.definitions().get(name)).unwrap_or(schema);
        schema["type"] == "object" && schema.get("required").is_none()
    }

    /// Joins the schemas of requests and answers; the second part says what the requests must call differently.
    pub(super) fn join(mut self) -> (Map<String, Value>, Twofold) {
        let requests = self.requests.take_definitions(false);
        let mut all = self.answers.take_definitions(false);
        let twofold = Twofold::find(&requests, &all);
        for (name, mut schema) in requests {
            twofold.rename(&mut schema);
            all.insert(twofold.name(name), schema);
        }
        (all, twofold)
    }
}

/// The types that are read differently than they are written, such as those with fields that may be left out.
pub(super) struct Twofold(BTreeSet<String>);

impl Twofold {
    /// Finds the types that differ by themselves, then those that refer to one.
    fn find(requests: &Map<String, Value>, answers: &Map<String, Value>) -> Self {
        let both = || requests.iter().filter_map(|(name, schema)| Some((name, schema, answers.get(name)?)));
        let mut names: BTreeSet<String> = BTreeSet::new();
        loop {
            let found = both().filter(|(_, request, answer)| request != answer || refers_to(request, &names));
            let found: BTreeSet<String> = found.map(|(name, ..)| name.clone()).collect();
            if found == names {
                return Self(names);
            }
            names = found;
        }
    }

    fn name(&self, name: String) -> String {
        if self.0.contains(&name) { name + AS_INPUT } else { name }
    }

    /// Makes a request refer to the schemas of requests.
    pub(super) fn rename(&self, value: &mut Value) {
        match value {
            Value::Object(fields) => {
                for (key, value) in fields {
                    match value {
                        Value::String(text) if key == "$ref" && is_one_of(text, &self.0) => text.push_str(AS_INPUT),
                        value => self.rename(value),
                    }
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.rename(item)),
            _ => {}
        }
    }
}

fn refers_to(value: &Value, names: &BTreeSet<String>) -> bool {
    match value {
        Value::Object(fields) => fields.iter().any(|(key, value)| match value {
            Value::String(text) => key == "$ref" && is_one_of(text, names),
            value => refers_to(value, names),
        }),
        Value::Array(items) => items.iter().any(|item| refers_to(item, names)),
        _ => false,
    }
}

fn is_one_of(reference: &str, names: &BTreeSet<String>) -> bool {
    reference.strip_prefix(FOLDER).is_some_and(|name| names.contains(name))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_refers_to_a_twofold_type_is_twofold_too() {
        let object = |value: Value| value.as_object().unwrap().clone();
        let outer = json!({"items": {"$ref": "#/components/schemas/Inner"}});
        let requests = object(json!({"Outer": outer, "Inner": {"type": "object"}, "Same": {"type": "string"}}));
        let answers = object(json!({"Outer": outer, "Inner": {"required": ["a"]}, "Same": {"type": "string"}}));
        let twofold = Twofold::find(&requests, &answers);
        assert_eq!(twofold.name("Outer".to_owned()), "OuterInput");
        assert_eq!(twofold.name("Same".to_owned()), "Same");
        let mut renamed = outer;
        twofold.rename(&mut renamed);
        assert_eq!(renamed, json!({"items": {"$ref": "#/components/schemas/InnerInput"}}));
    }
}
