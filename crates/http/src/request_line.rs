//! What the first line of a request may be: bounded in length and free of control characters. Knows no route.

use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::Response;
use switchboard_model::wire::code::ErrorCode;

use crate::ApiResult;
use crate::error::ApiError;

/// The longest address, in bytes.
const URI_BYTES: usize = 8 * 1024;

/// Refuses what no route means: databases do not store U+0000, and nothing that a path or a query names here holds a
/// control character.
///
/// # Errors
/// `bad_request`, with the status 414 for an address that is too long.
pub(crate) async fn check(request: Request, next: Next) -> ApiResult<Response> {
    let refused = |detail: String| ApiError::new(ErrorCode::BadRequest, detail);
    let address = request.uri().path_and_query().map_or("", |address| address.as_str());
    if address.len() > URI_BYTES {
        let detail = format!("the address is above {URI_BYTES} bytes");
        return Err(refused(detail).with_status(StatusCode::URI_TOO_LONG));
    }
    if has_control(address.as_bytes()) {
        return Err(refused("the address must not contain control characters".to_owned()));
    }
    Ok(next.run(request).await)
}

/// Finds encoded control characters: U+0000 to U+001F and U+007F to U+009F in UTF-8. Others cannot stand there.
fn has_control(address: &[u8]) -> bool {
    let is_c2 = |before: &[u8]| before.ends_with(b"%C2") || before.ends_with(b"%c2");
    address.windows(3).enumerate().any(|(place, code)| match code {
        [b'%', b'0' | b'1', digit] => digit.is_ascii_hexdigit(),
        [b'%', b'7', b'f' | b'F'] => true,
        [b'%', b'8' | b'9', digit] => digit.is_ascii_hexdigit() && is_c2(&address[..place]),
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_found_in_any_form() {
        for bad in ["/a?cursor=%00", "/%1fa", "/a%0Ab", "/a?b=%7F", "/a?b=%7f", "/a%C2%85", "/a?b=%c2%9f", "%00"] {
            assert!(has_control(bad.as_bytes()), "{bad}");
        }
        for good in ["", "/a?b=c", "/a%20b", "/%2500", "/%7e", "/%e2%82%ac", "/%C3%85", "/%C2%A0", "/%d0%8f", "/a%0"] {
            assert!(!has_control(good.as_bytes()), "{good}");
        }
    }
}
