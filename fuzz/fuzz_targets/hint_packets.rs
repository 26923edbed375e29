//! Hints between replicas: whatever arrives is read or passed over, and what is packed fits and comes back.

#![no_main]

#[expect(dead_code, reason = "the target uses the form of packets, and not who counts them")]
#[path = "../../crates/store-pg/src/hints/packet.rs"]
mod packet;

use libfuzzer_sys::fuzz_target;
use packet::{PACKET_BYTES, Packet, pack, room_for_news};
use switchboard_model::ids::InstanceId;
use switchboard_model::json_text::JsonText;
use switchboard_store_api::News;

fuzz_target!(|text: &str| {
    if let Ok(packet) = serde_json::from_str::<Packet<News>>(text) {
        let written = serde_json::to_string(&packet).expect("every packet has a text");
        let again: Packet<News> = serde_json::from_str(&written).expect("a packet that was written");
        assert_eq!((again.seq, again.look, &again.news), (packet.seq, packet.look, &packet.news));
        assert_eq!(again.from, packet.from);
    }
    // Each line that is JSON is news of its own.
    let from = InstanceId::from_stored("replica-1".to_owned());
    let fits = |one: &JsonText| one.as_str().len() < room_for_news(&from);
    let news: Vec<JsonText> = text.lines().filter_map(|line| JsonText::parse(line).ok()).filter(fits).collect();
    let mut seq = 0;
    let packets = pack(&from, &mut seq, text.len() % 2 == 0, news.clone());
    assert_eq!(seq, packets.len() as u64);
    let mut unpacked = Vec::new();
    for text in &packets {
        assert!(text.len() <= PACKET_BYTES);
        unpacked.extend(serde_json::from_str::<Packet<JsonText>>(text).expect("a packet that was packed").news);
    }
    assert_eq!(unpacked, news);
});
