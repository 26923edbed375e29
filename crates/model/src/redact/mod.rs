//! Keeping secrets out of what runs leave behind: errors and results are stored, shown and published.
//!
//! Two kinds are replaced by [`MARK`]: values that are known to be secrets, and what looks like one (`shapes`).
//! It is a second line of defence: whoever writes an error should leave secrets out in the first place.

mod shapes;

use std::borrow::Cow;

use crate::json_text::JsonText;
use crate::run::{Ending, clean_error};
use crate::task::Action;

/// What stands where a secret was.
pub const MARK: &str = "[redacted]";

/// The shortest known value that is replaced, in bytes; shorter ones occur everywhere.
const KNOWN_BYTES: usize = 4;

/// The shortest part of a known value, such as a credential after its scheme, that is replaced on its own.
const PART_BYTES: usize = 8;

/// Replaces secrets, those with a known shape and those of one action.
#[derive(Clone, Default)]
pub struct Redactor {
    /// Known values, the longest first, so that none is left over in part.
    known: Vec<String>,
}

impl Redactor {
    /// Knows the secrets of an action.
    #[must_use]
    pub fn of(action: &Action) -> Self {
        match action {
            Action::Http(action) => Self::knowing(action.secret_values()),
            Action::Event(_) | Action::Pull(_) | Action::System(_) => Self::default(),
        }
    }

    /// Knows what the input of a run gives under the name of a secret, such as `password`.
    #[must_use]
    pub fn of_input(input: Option<&JsonText>) -> Self {
        let mut values = Vec::new();
        if let Some(input) = input.and_then(|input| input.decode::<serde_json::Value>().ok()) {
            collect_secrets(&input, &mut values);
        }
        Self::knowing(values.iter().map(String::as_str))
    }

    /// Knows some values, and the longer ones of their parts.
    #[must_use]
    pub fn knowing<'a>(values: impl IntoIterator<Item = &'a str>) -> Self {
        let mut known = Vec::new();
        for value in values {
            known.extend(Some(value).filter(|value| value.len() >= KNOWN_BYTES));
            known.extend(value.split([' ', ',', ';']).filter(|part| part.len() >= PART_BYTES));
        }
        // A value that is part of the mark could never be replaced by it.
        known.retain(|value| !MARK.contains(value));
        known.sort_unstable_by(|a, b| b.len().cmp(&a.len()).then(a.cmp(b)));
        known.dedup();
        Self { known: known.into_iter().map(str::to_owned).collect() }
    }

    /// Replaces the secrets of a text.
    #[must_use]
    pub fn text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut text = Cow::Borrowed(text);
        for value in &self.known {
            if text.contains(value.as_str()) {
                text = Cow::Owned(text.replace(value.as_str(), MARK));
            }
        }
        match shapes::replaced(&text) {
            Some(replaced) => Cow::Owned(replaced),
            None => text,
        }
    }

    /// Replaces the secrets in the texts of a JSON value; everything else stays byte for byte.
    #[must_use]
    pub fn json(&self, json: &JsonText) -> JsonText {
        let text = json.as_str();
        let mut out = String::new();
        let (mut kept, mut at) = (0, 0);
        let mut names_secret = false;
        while let Some(start) = text[at..].find('"').map(|found| at + found) {
            let end = literal_end(text, start);
            let literal = &text[start..end];
            let is_name = text[end..].trim_start().starts_with(':');
            let is_member = names_secret && text[at..start].trim() == ":";
            let replaced = if is_member && literal.len() > 2 { Some(quoted(MARK)) } else { self.literal(literal) };
            names_secret = is_name && shapes::is_secret_name(&literal[1..literal.len() - 1]);
            if let Some(replaced) = replaced {
                out.push_str(&text[kept..start]);
                out.push_str(&replaced);
                kept = end;
            }
            at = end;
        }
        if kept == 0 {
            return json.clone();
        }
        out.push_str(&text[kept..]);
        // One string was replaced by another, so it is JSON as before; if not, nothing of it is shown.
        JsonText::parse(out).unwrap_or_else(|_| JsonText::null())
    }

    /// Replaces the secrets of a string literal, quotes included; `None` when it has none.
    fn literal(&self, literal: &str) -> Option<String> {
        let inner = &literal[1..literal.len() - 1];
        let plain = if inner.contains('\\') { Cow::Owned(unescaped(inner)) } else { Cow::Borrowed(inner) };
        let redacted = self.text(&plain);
        (redacted != plain).then(|| quoted(&redacted))
    }
}

impl std::fmt::Debug for Redactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Redactor({} known)", self.known.len())
    }
}

impl Ending {
    /// Returns the ending as it may be stored: without secrets, and its error cleaned.
    #[must_use]
    pub fn redacted(self, redactor: &Redactor) -> Self {
        let error = |text: String| clean_error(&redactor.text(&text));
        match self {
            Self::Succeeded(result) => Self::Succeeded(result.map(|result| redactor.json(&result))),
            Self::Failed(text) => Self::Failed(error(text)),
            Self::Retry { error: text, delay } => Self::Retry { error: error(text), delay },
            Self::Cancelled | Self::Released => self,
        }
    }
}

/// Collects the texts that stand under the name of a secret.
fn collect_secrets(value: &serde_json::Value, found: &mut Vec<String>) {
    match value {
        serde_json::Value::Object(members) => {
            for (name, member) in members {
                match member {
                    serde_json::Value::String(text) if shapes::is_secret_name(name) => found.push(text.clone()),
                    member => collect_secrets(member, found),
                }
            }
        }
        serde_json::Value::Array(items) => items.iter().for_each(|item| collect_secrets(item, found)),
        _ => {}
    }
}

/// Returns where the string literal of a valid JSON text ends that starts at `start`.
fn literal_end(text: &str, start: usize) -> usize {
    let mut is_escaped = false;
    for (offset, byte) in text.as_bytes()[start + 1..].iter().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => return start + offset + 2,
            _ => {}
        }
    }
    text.len()
}

/// Writes a text as a JSON string.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Reads the inside of a JSON string. Lone surrogates, which no text can hold, become U+FFFD.
fn unescaped(inner: &str) -> String {
    let mut out = String::with_capacity(inner.len());
    let mut rest = inner;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        // Both bytes of an escape are ASCII.
        let length = match rest.as_bytes().get(at + 1) {
            Some(b'u') => escape_length(&rest[at..]),
            _ => 2,
        };
        let escape = rest.get(at..at + length).unwrap_or(&rest[at..]);
        out.push_str(&serde_json::from_str::<String>(&format!("\"{escape}\"")).unwrap_or_else(|_| "\u{fffd}".into()));
        rest = &rest[at + escape.len()..];
    }
    out.push_str(rest);
    out
}

/// Returns the length of the escape that a text starts with: twice as long for a pair of surrogates.
fn escape_length(text: &str) -> usize {
    let unit = |at: usize| text.get(at..at + 6).filter(|unit| unit.starts_with("\\u"))?.get(2..).map(str::to_owned);
    let value = |at| unit(at).and_then(|hex| u16::from_str_radix(&hex, 16).ok());
    let is_pair = matches!((value(0), value(6)), (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)));
    if is_pair { 12 } else { 6 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn json(text: &str) -> String {
        Redactor::default().json(&JsonText::parse(text).unwrap()).as_str().to_owned()
    }

    #[test]
    fn json_stays_json_and_keeps_the_bytes_of_what_is_no_secret() {
        let plain = r#"{"a" : ["\ud800", "\u0000", 1.0e5, true, null, "C:\\x\"y"],"count":3, "token":5 ,"":""}"#;
        assert_eq!(json(plain), plain);
        let key = format!("sbk_{}", "a".repeat(43));
        assert_eq!(json(&format!(r#"[ "{key}" , "\ud800" ]"#)), r#"[ "[redacted]" , "\ud800" ]"#);
        assert_eq!(json(&format!(r#"{{"{key}":1}}"#)), r#"{"[redacted]":1}"#);
        assert_eq!(json(&format!(r#"["line\n{key}\ud83d\ude00\ud800\u00e9"]"#)), "[\"line\\n[redacted]😀\u{fffd}é\"]");
        assert_eq!(json(r#"["\u0070assword=hunter2"]"#), r#"["password=[redacted]"]"#);
    }

    #[test]
    fn members_that_are_named_like_secrets_lose_their_texts() {
        assert_eq!(json(r#"{"password" : "x y","user":"ann"}"#), r#"{"password" : "[redacted]","user":"ann"}"#);
        assert_eq!(json(r#"{"Api-Key":"a\"b"}"#), r#"{"Api-Key":"[redacted]"}"#);
        let kept = r#"{"password":"","token":null,"secret":{"a":"b"},"key":"k","next_page_token":"t","a":"password"}"#;
        assert_eq!(json(kept), kept);
        assert_eq!(json(r#"["password","x"]"#), r#"["password","x"]"#);
    }

    #[test]
    fn known_values_are_replaced_wherever_they_are() {
        let redactor = Redactor::knowing(["Bearer s3cr3t-s3cr3t", "k\"ey", "abc", "redacted"]);
        assert_eq!(redactor.text("got Bearer s3cr3t-s3cr3t"), "got [redacted]");
        assert_eq!(redactor.text("s3cr3t-s3cr3t and k\"ey in abc"), "[redacted] and [redacted] in abc");
        let echoed = JsonText::parse(r#"{"headers":{"x":"k\"ey","y":"s3cr3t-s3cr3t!"},"redacted":"abc"}"#).unwrap();
        let expected = r#"{"headers":{"x":"[redacted]","y":"[redacted]!"},"redacted":"abc"}"#;
        assert_eq!(redactor.json(&echoed).as_str(), expected);
        assert_eq!(format!("{redactor:?}"), "Redactor(3 known)");
    }

    #[test]
    fn endings_are_redacted_and_cleaned() {
        let redactor = Redactor::default();
        let failed = |text: &str| Ending::Failed(text.to_owned());
        assert_eq!(failed("password=x\nno").redacted(&redactor), failed("password=[redacted] no"));
        // A secret that the limit would cut is gone before it is cut.
        let long = format!("{} sbt_{}", "x".repeat(1_990), "a".repeat(43));
        assert_eq!(failed(&long).redacted(&redactor), failed(&format!("{} [redacted", "x".repeat(1_990))));
    }

    /// Words of which none is a secret.
    const WORDS: &str = "[a-z]{0,8}( [a-zé\"\\\\/\u{1}]{1,6}){0,4}";

    fn plain_json() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            any::<i64>().prop_map(serde_json::Value::from),
            any::<bool>().prop_map(serde_json::Value::from),
            WORDS.prop_map(serde_json::Value::from),
        ];
        leaf.prop_recursive(4, 40, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(serde_json::Value::from),
                prop::collection::btree_map("[a-j]{1,6}", inner, 0..6)
                    .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn plain_json_is_never_changed(value in plain_json()) {
            let text = value.to_string();
            prop_assert_eq!(json(&text), text);
        }

        #[test]
        fn redacting_twice_changes_nothing(parts in prop::collection::vec(
            "password=|token: |\"secret\":\"|Bearer |Basic dXNlcjpwYXNz|://|@|[a-zA-Z0-9 \"'&;:/=\\[\\]{}\\\\.-]{0,12}\
             |sbk_[a-z0-9]{20}|whsec_[A-Za-z0-9+/]{32}=|eyJhbGciOi.eyJzdWIiOi.c2ln|\\[redacted\\]|-----BEGIN PRIVATE KEY-----",
            0..12)) {
            let redactor = Redactor::knowing(["known-value-1"]);
            let once = redactor.text(&parts.concat()).into_owned();
            prop_assert_eq!(redactor.text(&once), once.as_str());
            let json = JsonText::encode(&parts).unwrap();
            let once = redactor.json(&json);
            prop_assert_eq!(once.decode::<Vec<String>>().unwrap().len(), parts.len());
            prop_assert_eq!(redactor.json(&once), once);
        }
    }

    #[test]
    fn what_an_input_gives_as_a_secret_is_known() {
        let input = JsonText::parse(r#"{"user": "ann", "db": [{"Password": "s3cr3t-word"}], "token": "t"}"#).unwrap();
        let redactor = Redactor::of_input(Some(&input));
        assert_eq!(redactor.text("ann logs in by s3cr3t-word"), "ann logs in by [redacted]");
        assert_eq!(redactor.text("t is too short"), "t is too short");
        assert_eq!(Redactor::of_input(None).text("s3cr3t-word"), "s3cr3t-word");
    }
}
