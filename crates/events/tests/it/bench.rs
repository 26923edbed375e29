//! One replica's bus on a fresh database, without sockets.

use std::sync::Arc;

use async_trait::async_trait;
use switchboard_events::{
    Authenticator, ConnectError, Feed, FeedObserver, Hold, Hub, HubOptions, Operations, Outgoing, Proven, Publisher,
    Session, SessionGuard, SessionIdentity,
};
use switchboard_model::auth_session::Credential;
use switchboard_model::feed::TickRequest;
use switchboard_model::identity::{Actor, RoomName, UserId};
use switchboard_model::ids::{InstanceId, RoomId};
use switchboard_model::instance::{NewInstance, Role};
use switchboard_model::json_text::JsonText;
use switchboard_model::room::{MessageId, NewEvent, NewRoom, Retention, RoomKind};
use switchboard_model::span::Span;
use switchboard_model::ticket::Grants;
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::frame::{ReplyError, ServerFrame};
use switchboard_store_api::{AppendOutcome, Stores, WriteContext};
use switchboard_store_sqlite::SqliteOptions;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

/// The most sockets of one user.
pub(crate) const SOCKETS: u32 = 4;

pub(crate) struct Bench {
    pub(crate) stores: Stores,
    pub(crate) hub: Arc<Hub>,
    publisher: Publisher,
    operations: Operations,
    _folder: tempfile::TempDir,
    _stop: DropGuard,
}

/// The number of a stored event.
pub(crate) fn offset(frame: &ServerFrame) -> Option<i64> {
    match frame {
        ServerFrame::Event(event) => event.offset,
        _ => None,
    }
}

/// Takes every token for the name of a user, but `wrong`.
struct Tokens;

#[async_trait]
impl Authenticator for Tokens {
    async fn authenticate(&self, token: &str) -> Result<Option<Proven>, ReplyError> {
        let user_id: UserId = token.parse().unwrap();
        let hold = Hold { credential: Credential::User(user_id.clone()), expires_at: None };
        Ok((token != "wrong").then_some(Proven { user_id, hold }))
    }
}

/// Enters a replica into the database.
pub(crate) async fn announce(stores: &Stores) -> InstanceId {
    let id = InstanceId::boot("test");
    let instance = NewInstance {
        id: id.clone(),
        name: "test".to_owned(),
        version: "1.2.3".to_owned(),
        schema_version: 1,
        roles: vec![Role::Api],
        pools: Vec::new(),
        pool_size: 1,
        key_check: String::new(),
    };
    stores.instances.register(&instance, Span::MAX).await.unwrap();
    id
}

impl Bench {
    pub(crate) async fn new() -> Self {
        Self::with(|_| {}).await
    }

    /// Makes a bus over other stores than usual.
    pub(crate) async fn with(change: impl FnOnce(&mut Stores)) -> Self {
        let (bench, feed, stop) = Self::wired(change).await;
        TaskTracker::new().spawn(feed.run(stop));
        bench
    }

    /// Makes a bus that hears nothing of what changes, but what a test tells it.
    pub(crate) async fn deaf() -> Self {
        Self::wired(|_| {}).await.0
    }

    async fn wired(change: impl FnOnce(&mut Stores)) -> (Self, Feed, CancellationToken) {
        let folder = tempfile::tempdir().unwrap();
        let (tracker, stop) = (TaskTracker::new(), CancellationToken::new());
        let options = SqliteOptions::new(folder.path().join("bus.db"));
        let mut stores = switchboard_store_sqlite::open(&options, &tracker, stop.clone()).await.unwrap();
        change(&mut stores);
        let instance = announce(&stores).await;
        let hub = Hub::new(&stores, HubOptions { instance, sockets_per_user: SOCKETS }, tracker.clone(), stop.clone());
        let (publisher, lanes) = Publisher::new(stores.rooms.clone(), stores.feed.clone(), hub.clone());
        let observers = vec![hub.clone() as Arc<dyn FeedObserver>];
        let feed = Feed::new(stores.feed.clone(), TickRequest::default(), observers);
        tracker.spawn(lanes.run(stop.clone()));
        let operations = Operations::new(hub.clone(), publisher.clone(), &stores);
        let bench = Self { stores, hub, publisher, operations, _folder: folder, _stop: stop.clone().drop_guard() };
        (bench, feed, stop)
    }

    /// Lets the hub know that it may have missed signals.
    pub(crate) async fn lose_the_feed(&self) {
        let tick = self.stores.feed.tick(None, &TickRequest::default()).await.unwrap();
        assert!(tick.resync);
        self.hub.observe(&tick);
    }

    pub(crate) async fn create_room(&self, name: &str) {
        self.create_room_keeping(name, 1_000_000).await;
    }

    pub(crate) async fn create_private_room(&self, name: &str) {
        self.create(name, RoomKind::Private, Retention::default()).await;
    }

    pub(crate) async fn create_room_keeping(&self, name: &str, max_count: i64) {
        self.create(name, RoomKind::Public, Retention { max_count, ..Retention::default() }).await;
    }

    async fn create(&self, name: &str, kind: RoomKind, retention: Retention) {
        let room = NewRoom { id: RoomId::new(), name: name.parse().unwrap(), kind, retention };
        self.stores.rooms.create(&WriteContext::system("test"), &room).await.unwrap();
    }

    pub(crate) async fn delete_room(&self, name: &str) {
        assert!(self.stores.rooms.delete(&WriteContext::system("test"), &name.parse().unwrap()).await.unwrap());
    }

    pub(crate) async fn connect(&self, user: &str) -> SessionGuard {
        let user: UserId = user.parse().unwrap();
        self.connect_by(user.as_str(), Credential::User(user.clone())).await
    }

    /// Connects a user by a ticket that hangs on something else than the user.
    pub(crate) async fn connect_by(&self, user: &str, minted_by: Credential) -> SessionGuard {
        self.try_connect(user, Hold { credential: minted_by, expires_at: None }).await.unwrap()
    }

    pub(crate) async fn try_connect(&self, user: &str, hold: Hold) -> Result<SessionGuard, ConnectError> {
        let identity = SessionIdentity { user_id: user.parse().unwrap(), grants: Grants::default() };
        self.hub.connect(identity, hold).await
    }

    /// Does what an operation asks for and leaves the answer in the outbox.
    pub(crate) async fn give(&self, session: &Arc<Session>, text: &str) {
        self.operations.handle(session, text, &Tokens).await;
    }

    /// Sends an operation and returns the answer; frames before it are dropped, later ones of the burst too.
    pub(crate) async fn send(&self, session: &Arc<Session>, text: &str) -> JsonText {
        self.give(session, text).await;
        let frames = self.frames_until(session, |frame| matches!(frame, ServerFrame::Reply(_))).await;
        let Some(ServerFrame::Reply(reply)) = frames.into_iter().next_back() else { panic!("a reply expected") };
        reply.ok.unwrap_or_else(|| panic!("{text} was refused: {:?}", reply.error))
    }

    /// Reads frames up to the first one that fits.
    pub(crate) async fn frames_until(
        &self,
        session: &Arc<Session>,
        fits: impl Fn(&ServerFrame) -> bool,
    ) -> Vec<ServerFrame> {
        let mut read = Vec::new();
        loop {
            let Outgoing::Frames(texts) = session.next().await else { panic!("closed") };
            for text in texts {
                let frame = ServerFrame::parse(std::str::from_utf8(&text).unwrap()).unwrap();
                let is_last = fits(&frame);
                read.push(frame);
                if is_last {
                    return read;
                }
            }
        }
    }

    /// Reads the offsets of the next events.
    pub(crate) async fn offsets(&self, session: &Arc<Session>, count: usize) -> Vec<i64> {
        let mut offsets = Vec::new();
        while offsets.len() < count {
            let Outgoing::Frames(texts) = session.next().await else { panic!("closed") };
            let frames = texts.iter().map(|text| ServerFrame::parse(std::str::from_utf8(text).unwrap()).unwrap());
            offsets.extend(frames.filter_map(|frame| offset(&frame)));
        }
        offsets
    }

    /// Sends an operation that is refused; no event may come before the answer.
    pub(crate) async fn refused(&self, session: &Arc<Session>, text: &str, code: ErrorCode) {
        self.give(session, text).await;
        let frames = self.frames_until(session, |frame| matches!(frame, ServerFrame::Reply(_))).await;
        assert!(frames.iter().all(|frame| offset(frame).is_none()), "{frames:?}");
        let Some(ServerFrame::Reply(reply)) = frames.into_iter().next_back() else { panic!("a reply expected") };
        assert_eq!(reply.error.map(|error| error.code), Some(code));
    }

    /// Publishes through this replica, in batches of one commit.
    pub(crate) async fn publish_here(&self, room: &str, count: usize) {
        self.publish_with(room, vec![JsonText::null(); count]).await;
    }

    pub(crate) async fn publish_with(&self, room: &str, payloads: Vec<JsonText>) -> Vec<AppendOutcome> {
        self.publisher.publish_batch(events(room, payloads)).await.unwrap()
    }

    /// Publishes as another replica does, which this one hears of by the feed alone.
    pub(crate) async fn publish_elsewhere(&self, room: &str, count: usize) {
        self.stores.rooms.append(&events(room, vec![JsonText::null(); count])).await.unwrap();
    }
}

fn events(room: &str, payloads: Vec<JsonText>) -> Vec<NewEvent> {
    let room: RoomName = room.parse().unwrap();
    let event = |payload| NewEvent {
        room: room.clone(),
        event: "note".parse().unwrap(),
        payload,
        msg_id: MessageId::given_or_new(None),
        sender: Actor::System("test"),
    };
    payloads.into_iter().map(event).collect()
}
