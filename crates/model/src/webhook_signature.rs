//! Signatures of webhooks, as Standard Webhooks defines them: HMAC-SHA256 over `id.timestamp.body`.
//!
//! Senders and receivers share this file; it knows neither requests nor storage.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use hmac::{Hmac, KeyInit as _, Mac as _};
use rand::TryRngCore as _;
use sha2::Sha256;

use crate::webhook::WEBHOOK_SECRET_PREFIX;

/// How far the timestamp of a delivery may be from now, in seconds.
pub const WEBHOOK_TOLERANCE_SECONDS: i64 = 300;

/// What a signature of this version starts with; it is followed by base64 of the MAC.
const VERSION: &str = "v1,";

/// The secret that a sender and a task share; it has no `Display`, so that it cannot slip into a log.
#[derive(Clone, PartialEq, Eq)]
pub struct WebhookKey(Vec<u8>);

/// Why a text or some bytes are not the secret of a webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be whsec_ followed by base64 of 24 to 64 bytes")]
pub struct WebhookKeyError;

/// What is signed.
#[derive(Clone, Copy)]
pub struct SignedDelivery<'a> {
    /// The identity of the message, the same for every delivery of it.
    pub id: &'a str,
    /// When this delivery was sent, in seconds since 1970.
    pub timestamp: i64,
    /// The body, byte for byte.
    pub body: &'a [u8],
}

impl WebhookKey {
    /// How many bytes a secret may have.
    pub const BYTES: RangeInclusive<usize> = 24..=64;

    /// Makes a secret of 32 random bytes.
    ///
    /// # Errors
    /// Fails when the operating system has no random bytes to give.
    pub fn generate() -> Result<Self, rand::rand_core::OsError> {
        let mut bytes = vec![0_u8; 32];
        rand::rngs::OsRng.try_fill_bytes(&mut bytes)?;
        Ok(Self(bytes))
    }

    /// Takes the bytes of a secret.
    ///
    /// # Errors
    /// Fails when there are too few or too many.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, WebhookKeyError> {
        if Self::BYTES.contains(&bytes.len()) { Ok(Self(bytes)) } else { Err(WebhookKeyError) }
    }

    /// Returns the bytes of the secret.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Shows the secret as Standard Webhooks writes it; only for the one response that hands it out.
    #[must_use]
    pub fn expose(&self) -> String {
        format!("{WEBHOOK_SECRET_PREFIX}{}", STANDARD.encode(&self.0))
    }

    /// Signs a delivery: the value of the header `webhook-signature`.
    #[must_use]
    pub fn sign(&self, delivery: &SignedDelivery<'_>) -> String {
        format!("{VERSION}{}", STANDARD.encode(self.mac(delivery).finalize().into_bytes()))
    }

    /// Tells in constant time whether one of the signatures is that of the delivery.
    #[must_use]
    pub fn verifies(&self, delivery: &SignedDelivery<'_>, signatures: &WebhookSignatures) -> bool {
        let mac = self.mac(delivery);
        signatures.0.iter().any(|signature| mac.clone().verify_slice(signature).is_ok())
    }

    fn mac(&self, delivery: &SignedDelivery<'_>) -> Hmac<Sha256> {
        // RFC 2104: keys longer than a block are hashed, shorter ones are padded, so no length is refused.
        #[expect(clippy::expect_used, reason = "an HMAC takes keys of any length")]
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("any length");
        mac.update(format!("{}.{}.", delivery.id, delivery.timestamp).as_bytes());
        mac.update(delivery.body);
        mac
    }
}

impl FromStr for WebhookKey {
    type Err = WebhookKeyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let encoded = text.strip_prefix(WEBHOOK_SECRET_PREFIX).ok_or(WebhookKeyError)?;
        // Some senders leave the padding away.
        let bytes = STANDARD_NO_PAD.decode(encoded.trim_end_matches('=')).map_err(|_| WebhookKeyError)?;
        Self::from_bytes(bytes)
    }
}

impl fmt::Debug for WebhookKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WebhookKey(…)")
    }
}

/// The signatures of a delivery: one for each secret that the sender has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookSignatures(Vec<Vec<u8>>);

impl WebhookSignatures {
    /// Reads the value of the header `webhook-signature`; signatures of other versions are left out.
    #[must_use]
    pub fn parse(header: &str) -> Self {
        let encoded = header.split(' ').filter_map(|part| part.strip_prefix(VERSION));
        Self(encoded.filter_map(|text| STANDARD.decode(text).ok()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &[u8] = br#"{"a" : "\ud800"}"#;

    fn delivery(timestamp: i64) -> SignedDelivery<'static> {
        SignedDelivery { id: "msg_1", timestamp, body: BODY }
    }

    #[test]
    fn the_reference_library_agrees() {
        let key = WebhookKey::generate().unwrap();
        let reference = standardwebhooks::Webhook::new(&key.expose()).unwrap();
        let theirs = reference.sign("msg_1", 1_700_000_000, BODY).unwrap();
        assert_eq!(key.sign(&delivery(1_700_000_000)), theirs);
        assert!(key.verifies(&delivery(1_700_000_000), &WebhookSignatures::parse(&theirs)));
    }

    #[test]
    fn any_of_several_signatures_will_do_and_a_change_is_noticed() {
        let (key, other) = (WebhookKey::generate().unwrap(), WebhookKey::generate().unwrap());
        let header = format!("v1a,xyz v1,!! {} {} v2,abc", other.sign(&delivery(1)), key.sign(&delivery(1)));
        let signatures = WebhookSignatures::parse(&header);
        assert!(key.verifies(&delivery(1), &signatures) && other.verifies(&delivery(1), &signatures));
        assert!(!WebhookKey::generate().unwrap().verifies(&delivery(1), &signatures));
        for changed in
            [delivery(2), SignedDelivery { id: "msg_2", ..delivery(1) }, SignedDelivery { body: b"{}", ..delivery(1) }]
        {
            assert!(!key.verifies(&changed, &signatures));
        }
        for nothing in ["", "v1,", "v1", "v2,abc"] {
            assert!(!key.verifies(&delivery(1), &WebhookSignatures::parse(nothing)), "{nothing:?}");
        }
    }

    #[test]
    fn secrets_have_24_to_64_bytes_and_are_never_shown() {
        let text = |count: usize| format!("whsec_{}", STANDARD.encode(vec![7; count]));
        for count in [24, 25, 32, 64] {
            let key: WebhookKey = text(count).parse().unwrap();
            assert_eq!(key.expose(), text(count));
            assert_eq!(text(count).trim_end_matches('=').parse(), Ok(key.clone()));
            assert_eq!(format!("{key:?}"), "WebhookKey(…)");
        }
        for bad in [text(23), text(65), text(32)[6..].to_owned(), "whsec_".to_owned(), "whsec_ä".to_owned()] {
            assert_eq!(bad.parse::<WebhookKey>(), Err(WebhookKeyError), "{bad}");
        }
    }
}
