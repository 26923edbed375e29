//! The value of a header that a task sends: a text, or a secret that is looked up when the request is made.

use std::fmt;

use schemars::JsonSchema;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use crate::identity::SecretName;

/// The value of a header.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum HttpHeader {
    /// The value itself.
    Text(String),
    /// A secret.
    Secret(SecretHeader),
}

/// A header whose value is a secret, looked up by its name for each request and stored nowhere else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SecretHeader {
    /// The name of the secret.
    pub secret: SecretName,
    /// What stands before the value, such as `Bearer ` with its space.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub before: String,
}

impl HttpHeader {
    /// Returns the value if it stands here.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Secret(_) => None,
        }
    }

    /// Returns the name of the secret if the value is one.
    #[must_use]
    pub const fn secret(&self) -> Option<&SecretName> {
        match self {
            Self::Text(_) => None,
            Self::Secret(secret) => Some(&secret.secret),
        }
    }

    /// Returns what stands here of the value.
    pub(super) fn shown(&self) -> &str {
        match self {
            Self::Text(text) => text,
            Self::Secret(secret) => &secret.before,
        }
    }
}

impl<'de> Deserialize<'de> for HttpHeader {
    /// Reads by hand what a derived form would also read from an array.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Value;

        impl<'de> Visitor<'de> for Value {
            type Value = HttpHeader;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, or {\"secret\": name}")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<HttpHeader, E> {
                Ok(HttpHeader::Text(text.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<HttpHeader, A::Error> {
                SecretHeader::deserialize(MapAccessDeserializer::new(map)).map(HttpHeader::Secret)
            }
        }

        deserializer.deserialize_any(Value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::strict;

    #[test]
    fn a_header_is_a_text_or_a_secret_and_nothing_else() {
        let read = |text: &str| strict::from_str::<HttpHeader>(text).map_err(|error| error.to_string());
        assert_eq!(read(r#""plain""#).unwrap().text(), Some("plain"));
        let secret = read(r#"{"secret":"crm.key","before":"Bearer "}"#).unwrap();
        assert_eq!((secret.secret().unwrap().as_str(), secret.shown()), ("crm.key", "Bearer "));
        assert_eq!(serde_json::to_string(&secret).unwrap(), r#"{"secret":"crm.key","before":"Bearer "}"#);
        assert_eq!(serde_json::to_string(&read(r#"{"secret":"k"}"#).unwrap()).unwrap(), r#"{"secret":"k"}"#);
        for odd in
            ["7", "null", r#"["k",""]"#, r#"{"secret":"a b"}"#, r#"{"secret":"k","value":"x"}"#, "{}", r#""a\u0000""#]
        {
            assert!(read(odd).is_err(), "{odd}");
        }
        assert!(read("[]").unwrap_err().contains("a text, or"), "{:?}", read("[]"));
    }
}
