//! A client that leaves it to the product to resume, and believes only positions.

use std::collections::BTreeMap;

use switchboard_client::{Client, ResumeEvent, ResumingSocket};
use switchboard_model::identity::RoomName;
use switchboard_model::wire::frame::EventFrame;
use switchboard_model::wire::op::{Since, SinceEnd};
use tokio::sync::watch;

use super::Tops;
use super::follower::Followed;
use crate::cluster::resuming;
use crate::must::Must as _;

pub(crate) struct Resumer {
    name: String,
    socket: ResumingSocket,
    /// The last offset of each room; 0 before the first event.
    seen: BTreeMap<RoomName, i64>,
    followed: Followed,
}

impl Resumer {
    /// Opens a socket of a user over replicas and joins rooms from their beginnings.
    pub(crate) async fn join(client: &Client, base_urls: Vec<String>, user: &str, rooms: Vec<RoomName>) -> Self {
        let socket = resuming(client, base_urls, user);
        for room in &rooms {
            socket.join(room, Since::End(SinceEnd::Earliest)).await.must("joining a room");
        }
        let seen = rooms.into_iter().map(|room| (room, 0)).collect();
        Self { name: user.to_owned(), socket, seen, followed: Followed::default() }
    }

    /// Follows the rooms until their tops are told and reached.
    pub(crate) async fn follow(mut self, mut tops: watch::Receiver<Option<Tops>>) -> Followed {
        while !self.is_done(&tops) {
            let is_ending = tops.borrow().is_some();
            tokio::select! {
                event = self.socket.next() => match event {
                    Some(ResumeEvent::Event(event)) => self.note(&event),
                    Some(ResumeEvent::Disconnected { .. }) => self.followed.cuts += 1,
                    Some(ResumeEvent::Desync { room, reason }) => {
                        self.followed.faults.push(format!("{} lost its place in {room}: {reason}", self.name));
                    }
                    Some(ResumeEvent::Refused { room, error }) => {
                        self.followed.faults.push(format!("{} may not join {room}: {error:?}", self.name));
                        break;
                    }
                    Some(ResumeEvent::Stopped(cause)) => {
                        self.followed.faults.push(format!("{} stopped: {cause:?}", self.name));
                        break;
                    }
                    Some(_) => {}
                    None => break,
                },
                // Looks again at once; once told, the tops stay.
                _ = tops.changed(), if !is_ending => {}
            }
        }
        self.followed
    }

    fn is_done(&self, tops: &watch::Receiver<Option<Tops>>) -> bool {
        tops.borrow().as_ref().is_some_and(|tops| self.seen.iter().all(|(room, seen)| *seen >= tops[room]))
    }

    fn note(&mut self, event: &EventFrame) {
        let (Some(seen), Some(offset)) = (self.seen.get_mut(&event.room), event.offset) else { return };
        if offset != *seen + 1 {
            let fault = format!("{} got {offset} of {} after {seen}", self.name, event.room);
            self.followed.faults.push(fault);
        }
        *seen = offset;
        self.followed.delivered += 1;
    }
}
