//! Settings that come as text from the environment and typed from a file.

use std::fmt::Display;
use std::str::FromStr;

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use switchboard_model::secret_text::SecretText;
use toml::Value;

/// Reads a value of its own type, or its text form.
pub(super) fn scalar<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned + FromStr<Err: Display>,
{
    match Value::deserialize(deserializer)? {
        Value::String(text) => {
            text.trim().parse().map_err(|error: T::Err| D::Error::custom(format!("{text:?}: {error}")))
        }
        typed => typed.try_into().map_err(|error: toml::de::Error| D::Error::custom(error.message())),
    }
}

/// Reads a list of texts, or one text with commas between.
pub(super) fn list<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: Display>,
{
    let read = |part: String| part.parse().map_err(|error: T::Err| D::Error::custom(format!("{part:?}: {error}")));
    parts(deserializer)?.into_iter().map(read).collect()
}

/// Reads a secret. What it was is never repeated, whatever is wrong with it.
pub(super) fn secret<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SecretText>, D::Error> {
    match Value::deserialize(deserializer)? {
        Value::String(text) => Ok(Some(SecretText::from_presented(text))),
        _ => Err(D::Error::custom("must be a text")),
    }
}

/// Reads a list of secrets, or one text with commas between.
pub(super) fn secrets<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<SecretText>, D::Error> {
    Ok(parts(deserializer)?.into_iter().map(SecretText::from_presented).collect())
}

/// Reads the parts of a list; its values may be secrets.
fn parts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let parts: Vec<String> = match Value::deserialize(deserializer)? {
        Value::String(text) => text.split(',').map(str::to_owned).collect(),
        Value::Array(values) if values.iter().all(Value::is_str) => {
            values.iter().filter_map(Value::as_str).map(str::to_owned).collect()
        }
        _ => return Err(D::Error::custom("must be a list of texts, or one text with commas between")),
    };
    Ok(parts.iter().map(|part| part.trim().to_owned()).filter(|part| !part.is_empty()).collect())
}
