//! Operations of sockets: what is read is written back as the same, and a refusal names the operation that it refuses.

#![no_main]

use libfuzzer_sys::fuzz_target;
use switchboard_model::wire::op::ClientFrame;

fuzz_target!(|text: &str| {
    match ClientFrame::parse(text) {
        Ok(frame) => {
            let written = frame.to_text().expect("every operation has a text");
            assert_eq!(ClientFrame::parse(&written).as_ref(), Ok(&frame), "{written}");
        }
        Err(bad) => {
            assert!(bad.id.is_none_or(|id| id < 1 << 53));
            assert!(!bad.error.message.is_empty());
        }
    }
});
