//! The form of a hint: packets of news, numbered by their sender, each small enough for one notification.
//!
//! Knows no database.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use switchboard_model::ids::InstanceId;
use switchboard_model::json_text::JsonText;

/// The largest packet, in bytes; the server refuses a notification of 8,000.
pub(super) const PACKET_BYTES: usize = 7_900;

/// How many senders a listener remembers; replicas get a new identity at every boot.
const SENDERS: usize = 1_000;

/// One notification. News are kept as text until they are read, so that payloads stay as they are.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Packet<N> {
    /// Who sends it.
    pub(super) from: InstanceId,
    /// Its number among all packets of the sender, from 1 on; a gap tells that some were lost.
    pub(super) seq: u64,
    /// Whether something changed of which no news tell.
    pub(super) look: bool,
    /// What changed.
    pub(super) news: Vec<N>,
}

impl Packet<JsonText> {
    fn empty(from: &InstanceId, seq: u64) -> Self {
        Self { from: from.clone(), seq, look: false, news: Vec::new() }
    }

    fn text(&self) -> String {
        // Texts, numbers and JSON always have a JSON form.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Returns how many bytes of news a packet of this sender has room for.
pub(super) fn room_for_news(from: &InstanceId) -> usize {
    PACKET_BYTES.saturating_sub(Packet::empty(from, u64::MAX).text().len())
}

/// Packs news in order into as few packets as hold them. `look` goes with the first, or alone.
pub(super) fn pack(from: &InstanceId, seq: &mut u64, look: bool, news: Vec<JsonText>) -> Vec<String> {
    let room = room_for_news(from);
    let mut packets: Vec<Packet<JsonText>> = Vec::new();
    let mut bytes = 0;
    let mut next = || {
        *seq += 1;
        Packet::empty(from, *seq)
    };
    if look {
        packets.push(Packet { look, ..next() });
    }
    for one in news {
        // Each costs a comma, too.
        let length = one.as_str().len() + 1;
        if packets.is_empty() || bytes + length > room {
            packets.push(next());
            bytes = 0;
        }
        bytes += length;
        if let Some(packet) = packets.last_mut() {
            packet.news.push(one);
        }
    }
    packets.iter().map(Packet::text).collect()
}

/// The latest number of each sender.
#[derive(Debug, Default)]
pub(super) struct Senders(HashMap<InstanceId, u64>);

impl Senders {
    /// Notes a packet and returns how many of its sender were lost right before it. Of a sender that was not heard
    /// before nothing is missing: what it sent then was read when the listening began.
    pub(super) fn lost_before(&mut self, from: InstanceId, seq: u64) -> u64 {
        if self.0.len() >= SENDERS {
            self.0.clear();
        }
        match self.0.insert(from, seq) {
            Some(last) => seq.saturating_sub(last).saturating_sub(1),
            None => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: String) -> JsonText {
        JsonText::parse(text).unwrap()
    }

    fn read(text: &str) -> Packet<JsonText> {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn packets_hold_as_much_as_fits_and_keep_the_order() {
        let from = InstanceId::boot("a");
        let news: Vec<JsonText> = (0..500).map(|n| json(format!("\"{n:03} {}\"", "é\\u0000".repeat(n % 40)))).collect();
        let mut seq = 41;
        let packets = pack(&from, &mut seq, true, news.clone());
        let bytes: usize = news.iter().map(|one| one.as_str().len() + 1).sum();
        assert!(packets.len() <= bytes / (PACKET_BYTES - 600) + 1, "{} packets for {bytes} bytes", packets.len());
        assert_eq!(seq, 41 + packets.len() as u64);
        let mut unpacked = Vec::new();
        for (number, text) in (42..).zip(&packets) {
            assert!(text.len() <= PACKET_BYTES, "{} bytes", text.len());
            let packet = read(text);
            assert_eq!((packet.seq, packet.look), (number, number == 42));
            unpacked.extend(packet.news);
        }
        assert_eq!(unpacked, news);
    }

    #[test]
    fn the_largest_news_fill_a_packet_and_nothing_makes_none() {
        let from = InstanceId::boot("a");
        let largest = json(format!("\"{}\"", "x".repeat(room_for_news(&from) - 2)));
        let mut seq = u64::MAX - 2;
        let packets = pack(&from, &mut seq, false, vec![largest.clone(), largest]);
        assert_eq!(packets.iter().map(String::len).collect::<Vec<_>>(), [PACKET_BYTES, PACKET_BYTES]);
        assert!(pack(&from, &mut seq, false, Vec::new()).is_empty());
        assert_eq!(read(&pack(&from, &mut 0, true, Vec::new())[0]).seq, 1);
    }

    #[test]
    fn a_gap_in_the_numbers_of_a_sender_is_counted() {
        let (a, b) = (InstanceId::boot("a"), InstanceId::boot("b"));
        let mut senders = Senders::default();
        let lost =
            [(&a, 7), (&a, 8), (&b, 1), (&a, 12), (&b, 2)].map(|(from, seq)| senders.lost_before(from.clone(), seq));
        assert_eq!(lost, [0, 0, 0, 3, 0]);
    }
}
