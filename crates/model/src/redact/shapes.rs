//! What secrets look like. A text is read once from left to right, so the time is linear in its length.
//!
//! Prose and plain data must survive: a word is a secret only by a prefix that is made for secrets, by its form, or by
//! the name before it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::MARK;
use crate::api_key::API_KEY_PREFIX;
use crate::auth_session::REFRESH_PREFIX;
use crate::ticket::TICKET_PREFIX;
use crate::webhook::WEBHOOK_SECRET_PREFIX;

/// The prefixes of secrets, and how many characters follow at least: our own, then those that well-known services
/// publish for scanners.
const PREFIXES: [(&str, usize); 16] = [
    (API_KEY_PREFIX, 8),
    (REFRESH_PREFIX, 8),
    (TICKET_PREFIX, 8),
    (WEBHOOK_SECRET_PREFIX, 8),
    ("ghp_", 20),
    ("gho_", 20),
    ("ghs_", 20),
    ("ghu_", 20),
    ("github_pat_", 20),
    ("glpat-", 20),
    ("xoxb-", 10),
    ("xoxp-", 10),
    ("sk-", 20),
    ("sk_live_", 10),
    ("AKIA", 16),
    ("AIza", 35),
];

/// The names whose values are secrets, in lower case and with `_` for `-`.
const NAMES: [&str; 18] = [
    "access_key",
    "access_token",
    "api_key",
    "apikey",
    "authorization",
    "client_secret",
    "cookie",
    "id_token",
    "passwd",
    "password",
    "private_key",
    "pwd",
    "refresh_token",
    "secret",
    "secret_key",
    "set_cookie",
    "token",
    "x_api_key",
];

/// Those of the names that prose has before a colon as well: "unexpected token: x".
const PROSE_NAMES: [&str; 2] = ["secret", "token"];

/// The most spaces that may stand around the sign between a name and its value.
const MOST_SPACES: usize = 4;

/// Tells whether the value of a member of this name is a secret.
pub(super) fn is_secret_name(name: &str) -> bool {
    // No name is longer than these.
    name.len() <= 16 && NAMES.contains(&name.to_ascii_lowercase().replace('-', "_").as_str())
}

/// Replaces what looks like a secret; `None` when nothing does.
pub(super) fn replaced(text: &str) -> Option<String> {
    let mut out = String::new();
    let (mut kept, mut at) = (0, 0);
    while at < text.len() {
        let rest = &text[at..];
        if rest.starts_with(MARK) {
            at += MARK.len();
        } else if let Some((skipped, secret)) = secret_at(rest) {
            let (start, end) = (at + skipped, at + skipped + secret);
            out.push_str(&text[kept..start]);
            out.push_str(MARK);
            (kept, at) = (end, end);
        } else {
            let word = run(rest, is_word);
            // Anything else goes by characters.
            at += if word > 0 { word } else { rest.chars().next().map_or(1, char::len_utf8) };
        }
    }
    (kept > 0).then(|| out + &text[kept..])
}

/// Finds a secret that is told by the word, or the address, at the start of a text: what is before it, and its length.
fn secret_at(text: &str) -> Option<(usize, usize)> {
    let word = &text[..run(text, is_word)];
    if word.is_empty() {
        return user_info(text);
    }
    private_key(text, word)
        .or_else(|| credential(text, word))
        .or_else(|| by_prefix(text, word))
        .or_else(|| jwt(text, word))
        .or_else(|| by_name(text, word))
}

/// Finds the user and the password in `://user:password@host`.
fn user_info(text: &str) -> Option<(usize, usize)> {
    const SIGN: &str = "://";
    let authority = text.strip_prefix(SIGN)?;
    let end = run(authority, |c| !c.is_whitespace() && !"/?#\"'<>\\".contains(c));
    let user_info = authority[..end].rfind('@').filter(|length| *length > 0)?;
    Some((SIGN.len(), user_info))
}

/// Finds a private key in PEM form; without an end it reaches to the end of the text.
fn private_key(text: &str, word: &str) -> Option<(usize, usize)> {
    const END: &str = "-----END";
    if !word.starts_with("-----BEGIN") {
        return None;
    }
    let label = text[..text.floor_char_boundary(60)].find("PRIVATE KEY-----")?;
    let end = text[label..].find(END).map_or(text.len(), |found| label + found);
    Some((0, end))
}

/// Finds the credential after the name of its scheme. Prose has the words too, so the credential must look like one.
fn credential(text: &str, word: &str) -> Option<(usize, usize)> {
    let is_bearer = word.eq_ignore_ascii_case("bearer");
    if !is_bearer && !word.eq_ignore_ascii_case("basic") {
        return None;
    }
    let after = &text[word.len()..];
    let value = spaced(after).filter(|value| value.len() < after.len())?;
    let value = &value[..run(value, is_token68)];
    let is_credential = if is_bearer {
        value.len() >= 20 || value.len() >= 8 && value.bytes().any(|byte| byte.is_ascii_digit())
    } else {
        STANDARD.decode(value).is_ok_and(|bytes| bytes.contains(&b':'))
    };
    is_credential.then_some((text.len() - after.len() + run(after, |c| c == ' '), value.len()))
}

fn by_prefix(text: &str, word: &str) -> Option<(usize, usize)> {
    let is_secret = |(prefix, least): &(&str, usize)| word.len() >= prefix.len() + least && word.starts_with(prefix);
    // Secrets of webhooks go on with the other characters of base64.
    PREFIXES.iter().any(is_secret).then(|| (0, run(text, |c| is_word(c) || matches!(c, '+' | '/' | '='))))
}

/// Finds a JSON web token: three parts, of which the first is a JSON object in base64.
fn jwt(text: &str, word: &str) -> Option<(usize, usize)> {
    if word.len() < 8 || !word.starts_with("eyJ") {
        return None;
    }
    let claims = text[word.len()..].strip_prefix('.')?;
    let claims = &claims[..run(claims, is_word)];
    let head = word.len() + 1 + claims.len() + 1;
    let signature = text.get(head - 1..)?.strip_prefix('.')?;
    (!claims.is_empty()).then(|| (0, head + run(signature, is_word)))
}

/// Finds the value of a name that is made for secrets: `name=value`, `name: value`, `"name":"value"`.
fn by_name(text: &str, word: &str) -> Option<(usize, usize)> {
    let last = word.trim_start_matches('-');
    if !is_secret_name(last) {
        return None;
    }
    let after = &text[word.len()..];
    let is_quoted_name = after.starts_with(['"', '\'', '\\']);
    let after = after.trim_start_matches('\\');
    let after = after.strip_prefix(['"', '\'']).unwrap_or(after);
    let after = spaced(after)?;
    let sign = after.chars().next().filter(|sign| matches!(sign, '=' | ':'))?;
    let value = spaced(&after[1..])?;
    let quoted = value.trim_start_matches('\\').strip_prefix(['"', '\'']);
    if sign == ':' && !is_quoted_name && quoted.is_none() && PROSE_NAMES.contains(&&*last.to_ascii_lowercase()) {
        return None;
    }
    let length = match quoted {
        Some(inner) => run(inner, |c| !matches!(c, '"' | '\'' | '\\')),
        None => bare_value(value),
    };
    let value = quoted.unwrap_or(value);
    // What is replaced already stays, or the marks would pile up.
    (length > 0 && &value[..length] != MARK).then(|| (text.len() - value.len(), length))
}

/// Returns the length of a value without quotes; the name of a scheme goes with the credential that follows it.
fn bare_value(value: &str) -> usize {
    let is_value =
        |c: char| !c.is_whitespace() && !matches!(c, '&' | ',' | ';' | '"' | '\'' | '<' | '>' | '\\' | '{' | '}');
    let first = run(value, is_value);
    let is_scheme = ["bearer", "basic"].iter().any(|scheme| value[..first].eq_ignore_ascii_case(scheme));
    match value[first..].strip_prefix(' ') {
        Some(credential) if is_scheme => first + 1 + run(credential, is_value),
        _ => first,
    }
}

/// Goes on after a few spaces; `None` when there are more.
fn spaced(text: &str) -> Option<&str> {
    let spaces = run(text, |c| c == ' ');
    (spaces <= MOST_SPACES).then(|| &text[spaces..])
}

/// Returns how many bytes at the start of a text are of a kind.
fn run(text: &str, is_kind: impl Fn(char) -> bool) -> usize {
    text.find(|c| !is_kind(c)).unwrap_or(text.len())
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-')
}

/// The characters of a credential (RFC 9110, 11.2).
fn is_token68(c: char) -> bool {
    is_word(c) || matches!(c, '.' | '~' | '+' | '/' | '=')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redacted(text: &str) -> String {
        replaced(text).unwrap_or_else(|| text.to_owned())
    }

    #[test]
    fn secrets_are_told_by_their_form() {
        let long = "aB3".repeat(15);
        for prefix in ["sbk_", "sbr_", "sbt_", "whsec_", "ghp_", "github_pat_", "glpat-", "xoxb-", "sk-", "sk_live_"] {
            assert_eq!(redacted(&format!("key {prefix}{long}.")), "key [redacted].", "{prefix}");
            assert_eq!(redacted(&format!("({prefix}{long})é")), "([redacted])é", "{prefix}");
        }
        assert_eq!(redacted("whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD/x=="), MARK);
        assert_eq!(redacted("id AKIAIOSFODNN7EXAMPLE"), "id [redacted]");
        assert_eq!(redacted("t=eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl;"), "t=[redacted];");
        assert_eq!(redacted("eyJhbGciOiJub25lIn0.eyJzdWIiOiIxIn0."), MARK);
        let pem = "-----BEGIN EC PRIVATE KEY-----\nMHcCAQ\nEE=\n-----END EC PRIVATE KEY-----\nafter";
        assert_eq!(redacted(pem), "[redacted]-----END EC PRIVATE KEY-----\nafter");
        assert_eq!(redacted("-----BEGIN PRIVATE KEY----- MHcCAQ"), MARK);
    }

    #[test]
    fn credentials_are_told_by_their_scheme() {
        assert_eq!(redacted("Bearer abc123def, x"), "Bearer [redacted], x");
        assert_eq!(redacted("basic dXNlcjpwYXNz"), "basic [redacted]");
        assert_eq!(redacted("Authorization: Bearer x"), "Authorization: [redacted]");
        assert_eq!(redacted("authorization: Digest-x y"), "authorization: [redacted] y");
        for prose in ["a bearer of news", "bearer authentication", "Basic support only", "basic usage1"] {
            assert_eq!(redacted(prose), prose);
        }
    }

    #[test]
    fn values_are_told_by_their_names() {
        for (text, expected) in [
            ("https://a.example/?token=abc&x=1", "https://a.example/?token=[redacted]&x=1"),
            ("PASSWORD = hunter2;", "PASSWORD = [redacted];"),
            ("password: hunter2", "password: [redacted]"),
            ("--password=hunter2 --user=ann", "--password=[redacted] --user=ann"),
            ("api-key='a b c' next", "api-key='[redacted]' next"),
            (r#"{"client_secret" : "a b","x":1}"#, r#"{"client_secret" : "[redacted]","x":1}"#),
            (r#"{\"token\":\"abc\"}"#, r#"{\"token\":\"[redacted]\"}"#),
            (r#"token: "abc""#, r#"token: "[redacted]""#),
            ("password=[redacted]", "password=[redacted]"),
        ] {
            assert_eq!(redacted(text), expected);
        }
        for plain in [
            "unexpected token: ident",
            "the password is wrong",
            "password=",
            "tokens=5",
            "next_page_token=abc",
            "token      = far",
            "keyboard: qwerty",
            "a token",
        ] {
            assert_eq!(redacted(plain), plain);
        }
    }

    #[test]
    fn users_and_passwords_leave_addresses() {
        assert_eq!(redacted("postgres://ann:pw@db:5432/x?a=b"), "postgres://[redacted]@db:5432/x?a=b");
        assert_eq!(redacted("at https://tok@a.example."), "at https://[redacted]@a.example.");
        assert_eq!(redacted("https://a:p@ss@b.example"), "https://[redacted]@b.example");
        for plain in ["https://a.example/@ann", "ann@a.example", "http://a?x=b@c", "x://@y"] {
            assert_eq!(redacted(plain), plain);
        }
    }

    #[test]
    fn hostile_texts_take_linear_time() {
        let start = std::time::Instant::now();
        for part in
            ["eyJ-ghp_", "://", "password ", "-----BEGIN ", "Bearer  ", "eyJaaaaaaaa.", "token=", "\\\"", "[redacted"]
        {
            let text = part.repeat(200_000 / part.len());
            let _ = replaced(&text);
        }
        // They take milliseconds; what is quadratic takes minutes.
        assert!(start.elapsed() < std::time::Duration::from_secs(10), "{:?}", start.elapsed());
    }
}
