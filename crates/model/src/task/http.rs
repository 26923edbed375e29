//! The action that sends an HTTP request: what it says, and what it may not say.
//!
//! Where requests may go is decided when they are sent, by the addresses that names have then; nothing here resolves.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use url::Url;

use crate::identity::SecretName;
use crate::json_text::JsonText;
use crate::task::{HttpHeader, TaskSpecError};

/// Sends an HTTP request. A status of 2xx is a success; 408, 425, 429, 5xx and network faults are tried again; anything
/// else fails for good. Redirects are not followed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HttpAction {
    /// Where it goes: an absolute `http` or `https` URL.
    #[schemars(length(max = Self::URL_BYTES))]
    pub url: String,
    /// How it is asked.
    #[serde(default)]
    pub method: HttpMethod,
    /// Headers beside those that the server sets; at most 32, of 8 KiB in all.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, HttpHeader>,
    /// What it carries; the input of the run when absent. GET and DELETE carry nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<JsonText>,
}

/// The method of an HTTP request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum HttpMethod {
    /// Without a body.
    Get,
    /// With a body.
    #[default]
    Post,
    /// With a body.
    Put,
    /// With a body.
    Patch,
    /// Without a body.
    Delete,
}

impl HttpMethod {
    /// Tells whether a request of the method carries a body.
    #[must_use]
    pub const fn has_body(self) -> bool {
        matches!(self, Self::Post | Self::Put | Self::Patch)
    }
}

const URL_FIELD: &str = "action.http.url";
const HEADERS_FIELD: &str = "action.http.headers";
const BODY_FIELD: &str = "action.http.body";

/// The headers that belong to the connection (RFC 9110, 7.6.1) or that the server sets itself.
const TAKEN_HEADERS: [&str; 10] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "idempotency-key",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// What the names of further headers of these kinds start with.
const TAKEN_PREFIXES: [&str; 3] = ["proxy-", "switchboard-", "webhook-"];

/// What occurs in the names of headers whose values are secrets.
const SECRET_NAMES: [&str; 8] = ["auth", "cookie", "credential", "key", "password", "secret", "signature", "token"];

impl HttpAction {
    /// The longest URL, in bytes.
    pub const URL_BYTES: usize = 2_048;
    /// The most headers.
    pub const HEADERS: usize = 32;
    /// The longest name of a header, in bytes.
    pub const HEADER_NAME_BYTES: usize = 100;
    /// The most that all headers have together, in bytes.
    pub const HEADER_BYTES: usize = 8 * 1024;

    /// Checks what can be checked before a request is sent.
    ///
    /// # Errors
    /// [`TaskSpecError`] names the first field that is wrong.
    pub(crate) fn check(&self) -> Result<(), TaskSpecError> {
        let refuse = |field, reason| Err(TaskSpecError { field, never_fires: false, reason });
        if let Err(reason) = check_url(&self.url) {
            return refuse(URL_FIELD, reason.to_owned());
        }
        if let Err(reason) = check_headers(&self.headers) {
            return refuse(HEADERS_FIELD, reason);
        }
        if self.body.is_some() && !self.method.has_body() {
            return refuse(BODY_FIELD, "cannot be sent with GET or DELETE; use POST, PUT or PATCH".to_owned());
        }
        Ok(())
    }

    /// Returns the names of the secrets that the headers carry.
    pub fn secrets(&self) -> impl Iterator<Item = &SecretName> {
        self.headers.values().filter_map(HttpHeader::secret)
    }

    /// Returns the values of headers that are secrets and stand in the action itself, so that they can be kept out of
    /// what is shown.
    pub fn secret_values(&self) -> impl Iterator<Item = &str> {
        let is_secret = |name: &str| {
            let name = name.to_ascii_lowercase();
            SECRET_NAMES.iter().any(|part| name.contains(part))
        };
        let of_secrets = self.headers.iter().filter(move |(name, _)| is_secret(name));
        of_secrets.filter_map(|(_, value)| value.text())
    }
}

pub(crate) fn check_url(text: &str) -> Result<(), &'static str> {
    if text.len() > HttpAction::URL_BYTES {
        return Err("must have at most 2048 bytes");
    }
    // A parser drops some of these and takes others for slashes; what is stored is what is sent.
    if text.contains(|c: char| c.is_whitespace() || c.is_control() || c == '\\') {
        return Err("must have no spaces, control characters or backslashes");
    }
    let has_scheme = |scheme: &str| text.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme));
    if !has_scheme("http://") && !has_scheme("https://") {
        return Err("must start with http:// or https://");
    }
    let url = Url::parse(text).map_err(|_| "must be an absolute URL such as https://app.example/hooks")?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err("must have no user name and no password; use the header authorization");
    }
    if url.fragment().is_some() {
        return Err("must have no fragment");
    }
    if url.port() == Some(0) {
        return Err("must have no port 0");
    }
    Ok(())
}

fn check_headers(headers: &BTreeMap<String, HttpHeader>) -> Result<(), String> {
    if headers.len() > HttpAction::HEADERS {
        return Err(format!("must be at most {}", HttpAction::HEADERS));
    }
    if headers.iter().map(|(name, value)| name.len() + value.shown().len()).sum::<usize>() > HttpAction::HEADER_BYTES {
        return Err(format!("must have at most {} bytes in all", HttpAction::HEADER_BYTES));
    }
    let mut seen = std::collections::BTreeSet::new();
    for (name, value) in headers {
        if !is_header_name(name) {
            return Err(format!(
                "has the name {name:?}; names are 1 to 100 letters, digits, or one of !#$%&'*+-.^_`|~"
            ));
        }
        let lower = name.to_ascii_lowercase();
        if TAKEN_HEADERS.contains(&lower.as_str()) || TAKEN_PREFIXES.iter().any(|prefix| lower.starts_with(prefix)) {
            return Err(format!("must not set {name}, which is set by the server or belongs to the connection"));
        }
        // What follows the text before a secret decides where the value ends.
        let is_usable = match value {
            HttpHeader::Text(text) => is_header_value(text),
            HttpHeader::Secret(secret) => is_header_value(secret.before.trim_ascii_end()),
        };
        if !is_usable {
            return Err(format!(
                "has a value of {name} with other than printable ASCII characters, or a space at an end"
            ));
        }
        if !seen.insert(lower) {
            return Err(format!("sets {name} twice"));
        }
    }
    Ok(())
}

/// Tells whether a text is a token (RFC 9110, 5.6.2).
fn is_header_name(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    (1..=HttpAction::HEADER_NAME_BYTES).contains(&text.len()) && text.bytes().all(is_allowed)
}

/// Tells whether a text is a field value (RFC 9110, 5.5) without the bytes that have no agreed meaning.
fn is_header_value(text: &str) -> bool {
    text.trim_ascii() == text && text.bytes().all(|byte| matches!(byte, b'\t' | b' '..=b'~'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn action(json: &str) -> HttpAction {
        serde_json::from_str(json).unwrap()
    }

    fn refused(json: &str) -> Option<&'static str> {
        action(json).check().err().map(|error| error.field)
    }

    fn with_url(url: &str) -> HttpAction {
        HttpAction { url: url.to_owned(), method: HttpMethod::Post, headers: BTreeMap::new(), body: None }
    }

    #[test]
    fn urls_are_absolute_and_carry_no_secret() {
        for good in
            ["https://a.example", "http://a.example:8080/x?y=1", "HTTPS://a.example/%20", "http://[2001:db8::1]/"]
        {
            assert_eq!(with_url(good).check(), Ok(()), "{good}");
        }
        for bad in [
            "",
            "/x",
            "a.example",
            "ftp://a.example",
            "file:///etc/passwd",
            "https:a.example",
            "https://",
            "http:\\\\a.example",
            "https://a.example\\@b.example",
            "https://ann@a.example",
            "https://ann:pw@a.example",
            "https://a.example/#part",
            "https://a.example/a b",
            "https://a.example/\n",
            "https://a.example:0/",
            "https://a.example:99999/",
            "https://[::1",
            "https://1.2.3.4.5.6/",
            "https://a<b/",
        ] {
            assert_eq!(with_url(bad).check().map_err(|error| error.field), Err(URL_FIELD), "{bad}");
        }
        assert_eq!(with_url(&format!("https://a.example/{}", "x".repeat(2_030))).check(), Ok(()));
        assert!(with_url(&format!("https://a.example/{}", "x".repeat(2_031))).check().is_err());
    }

    #[test]
    fn headers_have_their_grammar_and_none_is_taken_from_the_server() {
        let with = |name: &str, value: &str| {
            let headers = BTreeMap::from([(name.to_owned(), HttpHeader::Text(value.to_owned()))]);
            HttpAction { headers, ..with_url("https://a.example") }.check()
        };
        for (name, value) in
            [("x-a", ""), ("Authorization", "Bearer x"), ("content-type", "text/plain"), ("a!#$", "\t|~")]
        {
            // A tab may stand between, not at an end.
            let value = value.trim_ascii();
            assert_eq!(with(name, value), Ok(()), "{name}");
        }
        let taken = ["Host", "content-length", "Connection", "transfer-encoding", "TE", "upgrade", "trailer", "expect"];
        let further =
            ["proxy-authorization", "Idempotency-Key", "switchboard-fence", "webhook-signature", "keep-alive"];
        for name in taken.into_iter().chain(further).chain(["", "a b", "a:b", "ä", "a\n"]) {
            assert_eq!(with(name, "x").map_err(|error| error.field), Err(HEADERS_FIELD), "{name:?}");
        }
        for value in ["a\r\nb: c", "a\0", "ä", " a", "a ", "\u{7f}"] {
            assert_eq!(with("x-a", value).map_err(|error| error.field), Err(HEADERS_FIELD), "{value:?}");
        }
        assert!(with(&"a".repeat(100), "").is_ok() && with(&"a".repeat(101), "").is_err());
        assert!(with("x", &"a".repeat(8 * 1024 - 1)).is_ok() && with("x", &"a".repeat(8 * 1024)).is_err());
        let many = |count: usize| HttpAction {
            headers: (0..count).map(|index| (format!("x-{index}"), HttpHeader::Text(String::new()))).collect(),
            ..with_url("https://a.example")
        };
        assert!(many(32).check().is_ok() && many(33).check().is_err());
        assert_eq!(refused(r#"{"url":"https://a.example","headers":{"x-a":"1","X-A":"2"}}"#), Some(HEADERS_FIELD));
    }

    #[test]
    fn only_some_methods_carry_a_body() {
        for method in ["GET", "DELETE"] {
            let with_body = format!(r#"{{"url":"https://a.example","method":"{method}","body":null}}"#);
            // A body of null is no body, as with every optional field.
            assert_eq!(refused(&with_body), None);
            assert_eq!(refused(&with_body.replace("null", "{}")), Some(BODY_FIELD));
        }
        for method in ["POST", "PUT", "PATCH"] {
            assert_eq!(refused(&format!(r#"{{"url":"https://a.example","method":"{method}","body":{{}}}}"#)), None);
        }
    }

    #[test]
    fn values_of_secret_headers_are_known() {
        let action = action(
            r#"{"url":"https://a.example","headers":{"Authorization":"Bearer abc","X-Api-Key":"k1","accept":"text/plain",
                "x-request":"r"}}"#,
        );
        assert_eq!(action.secret_values().collect::<Vec<_>>(), ["Bearer abc", "k1"]);
    }
}
