//! Which origins of browsers are trusted: to open sockets and to read answers. Knows nothing of tickets.

use axum::http::HeaderMap;
use axum::http::header::ORIGIN;
use switchboard_model::wire::code::ErrorCode;

use crate::ApiResult;
use crate::error::ApiError;

/// Tells whether an origin is in the list.
///
/// The comparison is exact: no case folding, no default ports, no patterns. `null` is what sandboxed and
/// local documents of anybody send, so it is never allowed.
pub(crate) fn is_allowed(origin: &[u8], allowed: &[String]) -> bool {
    origin != b"null" && allowed.iter().any(|known| known.as_bytes() == origin)
}

/// Returns the origin of a request if it may open sockets; `None` for a program, which sends none.
///
/// # Errors
/// `forbidden` for every other origin, and for several.
pub(crate) fn allowed_origin<'a>(headers: &'a HeaderMap, allowed: &[String]) -> ApiResult<Option<&'a str>> {
    let mut values = headers.get_all(ORIGIN).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let origin = value.to_str().ok().filter(|origin| is_allowed(origin.as_bytes(), allowed));
    match origin.filter(|_| values.next().is_none()) {
        Some(origin) => Ok(Some(origin)),
        None => Err(ApiError::new(ErrorCode::Forbidden, "sockets may not be opened from this origin")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(origins: &[&[u8]]) -> Result<Option<String>, ()> {
        let allowed = ["https://app.example", "http://localhost:3000", "https://xn--bcher-kva.example", "null"];
        let mut headers = HeaderMap::new();
        for origin in origins {
            headers.append(ORIGIN, axum::http::HeaderValue::from_bytes(origin).unwrap());
        }
        allowed_origin(&headers, &allowed.map(str::to_owned)).map(|origin| origin.map(str::to_owned)).map_err(drop)
    }

    #[test]
    fn origins_are_compared_exactly() {
        for good in ["https://app.example", "http://localhost:3000", "https://xn--bcher-kva.example"] {
            assert_eq!(check(&[good.as_bytes()]), Ok(Some(good.to_owned())), "{good}");
        }
        let refused = [
            "https://app.example.evil.example",
            "https://evil-app.example",
            "https://evil.example/https://app.example",
            "https://sub.app.example",
            "https://app.example.",
            "https://app.example:443",
            "https://app.example:8443",
            "http://app.example",
            "wss://app.example",
            "https://app.example/",
            "https://app.example?x=1",
            "https://APP.example",
            "HTTPS://app.example",
            "https://app.example@evil.example",
            "https://user@app.example",
            "app.example",
            "http://localhost",
            "http://localhost:30000",
            "http://127.0.0.1:3000",
            "https://app.example https://evil.example",
            "https://bücher.example",
            "file://",
            "null",
            "*",
            "",
        ];
        for bad in refused {
            assert_eq!(check(&[bad.as_bytes()]), Err(()), "{bad}");
        }
        assert_eq!(check(&[b"https://app.example\xff"]), Err(()));
    }

    #[test]
    fn programs_send_no_origin_and_nobody_sends_two() {
        assert_eq!(check(&[]), Ok(None));
        assert_eq!(check(&[b"https://app.example", b"https://app.example"]), Err(()));
        assert_eq!(check(&[b"https://app.example", b"https://evil.example"]), Err(()));
    }
}
