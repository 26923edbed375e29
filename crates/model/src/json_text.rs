//! Opaque JSON kept verbatim: payloads, inputs and results are never decoded and encoded again.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use crate::wire::limits::JSON_DEPTH;

/// A valid JSON value in exactly the bytes in which it arrived; clones share the text.
#[derive(Clone)]
pub struct JsonText(Arc<RawValue>);

/// Why a text is not accepted as opaque JSON.
#[derive(Debug, thiserror::Error)]
pub enum JsonTextError {
    /// The text is not JSON.
    #[error("not valid JSON: {0}")]
    Syntax(#[from] serde_json::Error),
    /// Arrays and objects are nested deeper than [`JSON_DEPTH`].
    #[error("JSON is nested deeper than {JSON_DEPTH} levels")]
    TooDeep,
}

impl JsonText {
    /// Accepts a text that is valid JSON and not nested too deeply.
    ///
    /// # Errors
    /// [`JsonTextError`] says what is wrong with the text.
    pub fn parse(text: impl Into<String>) -> Result<Self, JsonTextError> {
        let raw = RawValue::from_string(text.into())?;
        if depth(raw.get()) > JSON_DEPTH {
            return Err(JsonTextError::TooDeep);
        }
        Ok(Self(raw.into()))
    }

    /// Encodes a value that the program itself made.
    ///
    /// # Errors
    /// Fails for types that have no JSON form, such as maps with keys that are not text.
    pub fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Self, serde_json::Error> {
        serde_json::value::to_raw_value(value).map(|raw| Self(raw.into()))
    }

    /// Returns the JSON value `null`.
    #[must_use]
    pub fn null() -> Self {
        Self(RawValue::NULL.to_owned().into())
    }

    /// Returns the text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.get()
    }

    /// Decodes the text into a type that the caller knows.
    ///
    /// # Errors
    /// Fails when the text has another shape.
    pub fn decode<'de, T: Deserialize<'de>>(&'de self) -> Result<T, serde_json::Error> {
        serde_json::from_str(self.as_str())
    }
}

/// Counts the deepest nesting of arrays and objects in a valid JSON text.
fn depth(text: &str) -> usize {
    let (mut deepest, mut current) = (0_usize, 0_usize);
    let (mut in_string, mut escaped) = (false, false);
    for byte in text.bytes() {
        if in_string {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => in_string = false,
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => in_string = true,
            b'[' | b'{' => {
                current += 1;
                deepest = deepest.max(current);
            }
            b']' | b'}' => current = current.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

impl fmt::Debug for JsonText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Payloads never reach logs; the length is enough to debug with.
        write!(f, "JsonText({} bytes)", self.as_str().len())
    }
}

impl PartialEq for JsonText {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for JsonText {}

impl Serialize for JsonText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for JsonText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        if depth(raw.get()) > JSON_DEPTH {
            return Err(serde::de::Error::custom(JsonTextError::TooDeep));
        }
        Ok(Self(raw.into()))
    }
}

impl JsonSchema for JsonText {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "AnyJson".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        true.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_escapes_and_lone_surrogates_byte_for_byte() {
        let text = r#"{"a":"\u0000","b":"\ud800", "c": 1.0e5}"#;
        let json = JsonText::parse(text).unwrap();
        assert_eq!(json.as_str(), text);
        let wrapped = serde_json::to_string(&[&json]).unwrap();
        assert_eq!(wrapped, format!("[{text}]"));
        let [back]: [JsonText; 1] = serde_json::from_str(&wrapped).unwrap();
        assert_eq!(back, json);
    }

    #[test]
    fn refuses_what_is_not_json_or_too_deep() {
        assert!(JsonText::parse("{").is_err());
        let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        assert!(JsonText::parse(nested(JSON_DEPTH)).is_ok());
        assert!(matches!(JsonText::parse(nested(JSON_DEPTH + 1)), Err(JsonTextError::TooDeep)));
        let brackets_in_text = format!("\"{}\\\"{}\"", "[".repeat(99), "{".repeat(99));
        assert!(JsonText::parse(brackets_in_text).is_ok());
    }
}
