//! Cursors and positions: a text is refused, or it stands for a position that is written as one that is read as the same.

#![no_main]

use libfuzzer_sys::fuzz_target;
use switchboard_model::room::Position;
use switchboard_model::wire::listen::RoomsCursor;
use switchboard_model::wire::op::Since;

fuzz_target!(|text: &str| {
    let of_json = serde_json::from_str::<RoomsCursor>(text).ok();
    for cursor in RoomsCursor::decode(text).into_iter().chain(of_json) {
        let written = cursor.encode();
        assert!(written.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)), "{written}");
        assert_eq!(RoomsCursor::decode(&written), Ok(cursor));
    }
    if let Ok(since) = serde_json::from_str::<Since>(text) {
        let written = serde_json::to_string(&since).expect("every position has a text");
        assert_eq!(serde_json::from_str::<Since>(&written).expect("a position that was written"), since);
    }
    if let Ok(position) = serde_json::from_str::<Position>(text) {
        let written = serde_json::to_string(&position).expect("every position has a text");
        assert_eq!(serde_json::from_str::<Position>(&written).expect("a position that was written"), position);
    }
});
