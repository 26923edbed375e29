//! Settings that come as text from the environment and typed from a file.

use std::fmt::Display;
use std::str::FromStr;

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use switchboard_model::secret_text::SecretText;

/// Reads a value of its own type, or its text form.
pub(super) fn scalar<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned + FromStr<Err: Display>,
{
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Form<T> {
        Text(String),
        Typed(T),
    }
    match Form::<T>::deserialize(deserializer)? {
        Form::Typed(value) => Ok(value),
        Form::Text(text) => text.trim().parse().map_err(|error| D::Error::custom(format!("{text:?}: {error}"))),
    }
}

/// Reads a list of texts, or one text with commas between.
pub(super) fn list<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: Display>,
{
    parts(deserializer)?.iter().map(|part| part.parse().map_err(D::Error::custom)).collect()
}

/// Reads a list of secrets, or one text with commas between.
pub(super) fn secrets<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<SecretText>, D::Error> {
    Ok(parts(deserializer)?.into_iter().map(SecretText::from_presented).collect())
}

fn parts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Form {
        Text(String),
        List(Vec<String>),
    }
    let parts = match Form::deserialize(deserializer)? {
        Form::Text(text) => text.split(',').map(str::to_owned).collect(),
        Form::List(parts) => parts,
    };
    Ok(parts.iter().map(|part| part.trim().to_owned()).filter(|part| !part.is_empty()).collect())
}

/// Reads a secret.
pub(super) fn secret<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SecretText>, D::Error> {
    Ok(Option::<String>::deserialize(deserializer)?.map(SecretText::from_presented))
}
