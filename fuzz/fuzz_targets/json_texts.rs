//! Opaque JSON: it is kept byte for byte, never deeper than allowed, and still JSON when secrets were taken out.

#![no_main]

use libfuzzer_sys::fuzz_target;
use switchboard_model::json_text::JsonText;
use switchboard_model::redact::Redactor;

fuzz_target!(|text: &str| {
    let Ok(json) = JsonText::parse(text) else { return };
    let kept = text.trim_matches([' ', '\t', '\n', '\r']);
    assert_eq!(json.as_str(), kept);
    assert_eq!(serde_json::to_string(&json).expect("JSON has a text"), kept);
    for redactor in [Redactor::default(), Redactor::of_input(Some(&json)), Redactor::knowing(["secret-value"])] {
        let redacted = redactor.json(&json);
        assert!(serde_json::from_str::<&serde_json::value::RawValue>(redacted.as_str()).is_ok());
    }
});
