//! Signed webhooks: no header is taken for a signature but the one that was made with the secret.

#![no_main]

use libfuzzer_sys::fuzz_target;
use switchboard_model::webhook_signature::{SignedDelivery, WebhookKey, WebhookSignatures};

fuzz_target!(|input: (&str, &str, i64, &[u8])| {
    let (header, id, timestamp, body) = input;
    let key = WebhookKey::from_bytes(vec![7; 32]).expect("32 bytes are a secret");
    let delivery = SignedDelivery { id, timestamp, body };
    let forged = WebhookSignatures::parse(header);
    let signature = key.sign(&delivery);
    assert!(!key.verifies(&delivery, &forged) || header.contains(&signature), "{header:?}");
    // Beside whatever else a header carries, as long as that leaves the signature whole.
    let among_others = format!("{header} {signature}");
    assert!(key.verifies(&delivery, &WebhookSignatures::parse(&among_others)));
    let longer = [body, b"!"].concat();
    let changed = SignedDelivery { body: &longer, ..delivery };
    assert!(!key.verifies(&changed, &WebhookSignatures::parse(&signature)));
    if let Ok(key) = header.parse::<WebhookKey>() {
        assert_eq!(key.expose().parse().ok(), Some(key));
    }
});
