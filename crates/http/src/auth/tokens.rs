//! Access tokens (RFC 9068 in form, RFC 8725 in care): minted and verified by database time. Knows no database.

use jsonwebtoken::{Header, Validation, decode, decode_header, encode};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use switchboard_model::Timestamp;
use switchboard_model::identity::UserId;
use switchboard_model::ids::SessionId;
use switchboard_model::user::{User, UserRole};
use uuid::Uuid;

use super::AuthOptions;
use super::keys::VerifyingKey;

/// The longest text that is taken for a token, in bytes.
pub(crate) const TOKEN_BYTES: usize = 4 * 1024;

/// How far the clocks of those who mint and those who verify may be apart, in seconds.
pub(crate) const LEEWAY_SECONDS: i64 = 5;

/// The type of our tokens, so that no other kind of token passes for one.
const TOKEN_TYPE: &str = "at+jwt";

/// What a token of ours says. Who may do what is decided by the session and the user as stored now; the role
/// stands in the token for other services that verify it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct AccessClaims {
    iss: String,
    aud: String,
    pub(crate) sub: UserId,
    pub(crate) sid: SessionId,
    role: UserRole,
    iat: i64,
    pub(crate) exp: i64,
    jti: Uuid,
}

/// Mints the access token of a session.
///
/// # Errors
/// Fails when the key cannot sign.
pub(crate) fn mint(
    options: &AuthOptions,
    user: &User,
    session: SessionId,
    now: Timestamp,
) -> Result<String, jsonwebtoken::errors::Error> {
    let key = options.keys.signing();
    let mut header = Header::new(key.verifying.algorithm);
    header.typ = Some(TOKEN_TYPE.to_owned());
    header.kid = Some(key.kid.clone());
    let claims = AccessClaims {
        iss: options.issuer.clone(),
        aud: options.audience.clone(),
        sub: user.id.clone(),
        sid: session,
        role: user.role,
        iat: now.timestamp(),
        exp: (now + options.access_ttl.to_delta()).timestamp(),
        jti: Uuid::new_v4(),
    };
    encode(&header, &claims, &key.encoding)
}

/// Verifies a token of ours; `None` for everything that is none, whatever is wrong with it.
pub(crate) fn verify(options: &AuthOptions, token: &str, now: Timestamp) -> Option<AccessClaims> {
    let header = decode_header(token).ok()?;
    if header.typ.as_deref() != Some(TOKEN_TYPE) {
        return None;
    }
    let key = options.keys.find(header.kid.as_deref()?)?;
    let claims: AccessClaims = decode_pinned(token, key, &options.issuer, &options.audience)?;
    let latest = now.timestamp() + LEEWAY_SECONDS;
    let is_sane =
        claims.iat <= latest && claims.exp <= (now + options.access_ttl.to_delta()).timestamp() + LEEWAY_SECONDS;
    (is_sane && is_alive(claims.exp, now)).then_some(claims)
}

/// Tells whether a token names a key of ours, so that no other issuer is asked about it.
pub(crate) fn is_ours(options: &AuthOptions, token: &str) -> bool {
    let kid = decode_header(token).ok().and_then(|header| header.kid);
    kid.is_some_and(|kid| options.keys.find(&kid).is_some())
}

/// Tells whether a token that expires at `exp`, in seconds, still works.
pub(crate) fn is_alive(exp: i64, now: Timestamp) -> bool {
    exp > now.timestamp() - LEEWAY_SECONDS
}

/// Verifies the signature by the one algorithm of the key, the issuer and the audience. The time is left to the
/// caller: it is that of the database.
pub(crate) fn decode_pinned<T: DeserializeOwned>(
    token: &str,
    key: &VerifyingKey,
    issuer: &str,
    audience: &str,
) -> Option<T> {
    let mut validation = Validation::new(key.algorithm);
    validation.set_issuer(&[issuer]);
    validation.set_audience(&[audience]);
    validation.set_required_spec_claims(&["iss", "aud", "sub", "exp"]);
    validation.validate_exp = false;
    decode(token, &key.key, &validation).ok().map(|token| token.claims)
}
