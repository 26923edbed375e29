//! The envelopes of the server, as clients read them: what is read is written back as the same.

#![no_main]

use libfuzzer_sys::fuzz_target;
use switchboard_model::wire::frame::ServerFrame;

fuzz_target!(|text: &str| {
    let Ok(frame) = ServerFrame::parse(text) else { return };
    let written = match &frame {
        ServerFrame::Event(event) => serde_json::to_string(event),
        ServerFrame::Reply(reply) => serde_json::to_string(reply),
        ServerFrame::Notice(notice) => serde_json::to_string(notice),
    };
    let written = written.expect("every frame has a text");
    assert_eq!(ServerFrame::parse(&written).expect("a frame that was written"), frame, "{written}");
});
