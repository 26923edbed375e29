//! Rooms and their events.

use std::sync::Arc;

use async_trait::async_trait;
use switchboard_model::identity::RoomName;
use switchboard_model::json_text::JsonText;
use switchboard_model::page::{Page, PageRequest};
use switchboard_model::room::{Epoch, HistoryPage, NewEvent, NewRoom, Position, Room, StoredEvent};
use switchboard_model::wire::code::ErrorCode;

use crate::StoreResult;
use crate::context::{WriteContext, Written};

/// What creating a room gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RoomCreateOutcome {
    /// The room was created.
    Created(Room),
    /// A room of this name exists; nothing was changed.
    NameTaken(Room),
}

/// What became of one event of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AppendOutcome {
    /// It was appended.
    Appended {
        /// Where it stands.
        position: Position,
        /// The event as it was stored.
        event: StoredEvent,
    },
    /// The same sender had appended the same message before; nothing was appended.
    Duplicate(Position),
    /// It was refused; its neighbours are not affected.
    Refused(ErrorCode),
}

/// Makes the answer that a once-key remembers; it runs inside the transaction and must only compute.
pub type AppendAnswer = Arc<dyn Fn(&[AppendOutcome]) -> JsonText + Send + Sync>;

/// The newest position of a room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoomTop {
    /// The room.
    pub room: RoomName,
    /// Its current history.
    pub epoch: Epoch,
    /// The offset of its newest event.
    pub top: i64,
}

/// Rooms: gap-free, commit-ordered logs of events.
#[async_trait]
pub trait RoomStore: Send + Sync {
    /// Creates a room and signals it.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn create(&self, context: &WriteContext, room: &NewRoom) -> StoreResult<Written<RoomCreateOutcome>>;

    /// Finds a room by name.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn find(&self, name: &RoomName) -> StoreResult<Option<Room>>;

    /// Lists rooms by name.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn list(&self, page: &PageRequest) -> StoreResult<Page<Room>>;

    /// Deletes a room with its events and signals it. `false` means that there is none.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn delete(&self, context: &WriteContext, name: &RoomName) -> StoreResult<bool>;

    /// Appends a batch of events in one commit and returns one outcome per event, in order.
    ///
    /// Positions in a room follow the order of the batch and of the commits, without holes.
    /// Missing rooms of a user or a pair are created; any other missing room refuses the event with
    /// `not_found`, and a malformed or ephemeral room name with `room_name_invalid`. One
    /// `RoomEvents` signal per room carries the new top. A message id given by the sender is
    /// deduplicated per room and sender, within the batch too.
    ///
    /// # Errors
    /// Fails when the database does; then nothing was appended, or the outcome is unknown and
    /// a repetition with the same given message ids is safe.
    async fn append(&self, events: &[NewEvent]) -> StoreResult<Vec<AppendOutcome>>;

    /// Appends as [`RoomStore::append`] does, but waits for no room that somebody else holds: the events of such a room
    /// are left alone, all of them, and have no outcome.
    ///
    /// # Errors
    /// As [`RoomStore::append`].
    async fn append_unless_busy(&self, events: &[NewEvent]) -> StoreResult<Vec<Option<AppendOutcome>>> {
        Ok(self.append(events).await?.into_iter().map(Some).collect())
    }

    /// Appends a batch as [`RoomStore::append`] does, under the once-key of `context` and with its audit entry,
    /// in one commit. The once-key remembers what `answer` makes of the outcomes. It is kept unless every event of
    /// the batch was refused; a batch without events keeps it too.
    ///
    /// # Errors
    /// As [`RoomStore::append`].
    async fn append_once(
        &self,
        context: &WriteContext,
        events: &[NewEvent],
        answer: &AppendAnswer,
    ) -> StoreResult<Written<Vec<AppendOutcome>>>;

    /// Reads the events after offset `after`, oldest first, at most `limit` and about
    /// [`switchboard_model::wire::limits::HISTORY_BYTES`] of payload. `None` means no such room.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn history(&self, name: &RoomName, after: i64, limit: u32) -> StoreResult<Option<HistoryPage>>;

    /// Reads the newest positions of rooms; missing rooms are left out.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn tops(&self, names: &[RoomName]) -> StoreResult<Vec<RoomTop>>;

    /// Applies the retention of up to `limit` rooms that exceed it: raises `first_kept`, then
    /// deletes. Also deletes expired message ids. Returns how many events and message ids were
    /// deleted; one call need not delete all, so only 0 says that nothing was left.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn sweep(&self, limit: u32) -> StoreResult<u64>;
}
