//! A client that joins its rooms again and again where it stopped, and believes no socket.

use std::collections::BTreeMap;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};
use serde_json::Value;
use switchboard_client::{Client, Socket, SocketEvent, SocketOptions};
use switchboard_model::identity::RoomName;
use switchboard_model::room::Position;
use switchboard_model::wire::frame::{EventFrame, NoticeFrame};
use switchboard_model::wire::op::{Since, SinceEnd};
use switchboard_model::wire::rest::TicketRequest;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::Tops;
use crate::cluster::{everywhere, request};

/// How many faults of one client are told.
const TOLD: usize = 5;

/// How long a client keeps a socket before it cuts it, in milliseconds.
const KEPT_MS: std::ops::Range<u64> = 300..6_000;

/// How long it may take to connect and to join.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a client has seen.
#[derive(Default)]
pub(crate) struct Followed {
    pub(crate) faults: Vec<String>,
    pub(crate) delivered: u64,
    pub(crate) cuts: u64,
    pub(crate) delays_ms: Vec<u32>,
}

pub(crate) struct Follower {
    name: String,
    request: TicketRequest,
    replicas: Vec<Client>,
    /// The last event of each room; `None` before the first.
    seen: BTreeMap<RoomName, Option<Position>>,
    began: Instant,
    rng: StdRng,
    followed: Followed,
}

impl Follower {
    pub(crate) fn new(number: usize, rooms: Vec<RoomName>, replicas: Vec<Client>, began: Instant, seed: u64) -> Self {
        let name = format!("user{number}");
        Self {
            request: request(&name, everywhere()),
            name,
            replicas,
            seen: rooms.into_iter().map(|room| (room, None)).collect(),
            began,
            rng: StdRng::seed_from_u64(seed.wrapping_add(number as u64)),
            followed: Followed::default(),
        }
    }

    /// Follows the rooms, from one connection to the next, until their tops are told and reached.
    pub(crate) async fn follow(mut self, mut tops: watch::Receiver<Option<Tops>>) -> Followed {
        while !self.is_done(&tops) && self.followed.faults.len() < TOLD {
            match timeout(PATIENCE, self.connect()).await {
                Ok(Some(socket)) => self.read(socket, &mut tops).await,
                // The replica is down, or silent.
                Ok(None) | Err(_) => sleep(Duration::from_millis(50)).await,
            }
        }
        self.followed
    }

    fn is_done(&self, tops: &watch::Receiver<Option<Tops>>) -> bool {
        tops.borrow().as_ref().is_some_and(|tops| {
            self.seen.iter().all(|(room, seen)| seen.as_ref().map_or(0, |seen| seen.offset) >= tops[room])
        })
    }

    /// Opens a socket to some replica and joins every room after the last event.
    async fn connect(&mut self) -> Option<Socket> {
        let replica = self.replicas.choose(&mut self.rng)?;
        let ticket = replica.mint_ticket(&self.request).await.ok()?;
        let socket = replica.connect(SocketOptions::ticket(ticket)).await.ok()?;
        for (room, seen) in &self.seen {
            let since = match seen {
                None => Since::End(SinceEnd::Earliest),
                Some(position) => Since::Position(position.clone()),
            };
            let joined = socket.handle().join(room, since).await.ok()?;
            let offset = seen.as_ref().map_or(0, |seen| seen.offset);
            if !joined.recovered || joined.offset != offset {
                let fault = format!("{} joined {room} after {offset} and was told {joined:?}", self.name);
                self.followed.faults.push(fault);
            }
        }
        Some(socket)
    }

    /// Reads a socket until it ends, is cut, or everything was seen.
    async fn read(&mut self, mut socket: Socket, tops: &mut watch::Receiver<Option<Tops>>) {
        let cut = Instant::now() + Duration::from_millis(self.rng.random_range(KEPT_MS));
        while !self.is_done(tops) {
            let is_ending = tops.borrow().is_some();
            tokio::select! {
                event = socket.next() => match event {
                    Some(SocketEvent::Event(event)) => self.note(&event),
                    Some(SocketEvent::Notice(NoticeFrame::Desync(desync))) => {
                        self.followed.faults.push(format!("{}: {desync:?}", self.name));
                    }
                    Some(SocketEvent::Closed { .. }) | None => return,
                    Some(_) => {}
                },
                // Also in the end: who believes no socket does not believe a silent one.
                () = sleep_until(cut) => {
                    self.followed.cuts += 1;
                    return;
                }
                // Looks again at once; once told, the tops stay.
                _ = tops.changed(), if !is_ending => {}
            }
        }
    }

    fn note(&mut self, event: &EventFrame) {
        let Some(seen) = self.seen.get_mut(&event.room) else { return };
        let Some(position) = event.position() else { return };
        let (last, is_same) = match seen {
            None => (0, true),
            Some(seen) => (seen.offset, seen.epoch == position.epoch),
        };
        if position.offset != last + 1 || !is_same {
            let fault = format!("{} got {} of {} after {last}", self.name, position.offset, event.room);
            self.followed.faults.push(fault);
        }
        *seen = Some(position);
        self.followed.delivered += 1;
        let sent = event.payload.decode::<Value>().ok().and_then(|payload| payload["at"].as_u64());
        let delay = sent.map(|sent| self.began.elapsed().as_millis().saturating_sub(sent.into()));
        self.followed.delays_ms.extend(delay.and_then(|delay| u32::try_from(delay).ok()));
    }
}
