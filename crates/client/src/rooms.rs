//! Rooms, and the events in them, over REST.

use reqwest::Method;
use switchboard_model::identity::RoomName;
use switchboard_model::page::{Page, PageRequest};
use switchboard_model::presence::Presence;
use switchboard_model::room::{HistoryPage, Room};
use switchboard_model::wire::frame::Published;
use switchboard_model::wire::rest::{
    PublishBatchRequest, PublishBatchResponse, PublishItem, PublishRequest, RoomRequest,
};

use crate::client::{Client, fetch, send};
use crate::error::ClientError;

impl Client {
    /// Creates a room.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn create_room(&self, request: &RoomRequest) -> Result<Room, ClientError> {
        fetch(self.api(Method::POST, &["rooms"]).json(request)).await
    }

    /// Returns a page of all rooms.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn list_rooms(&self, page: PageRequest) -> Result<Page<Room>, ClientError> {
        fetch(self.api_page(&["rooms"], &page)).await
    }

    /// Returns a room.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn get_room(&self, name: &RoomName) -> Result<Room, ClientError> {
        fetch(self.api(Method::GET, &["rooms", name.as_str()])).await
    }

    /// Deletes a room with its history.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn delete_room(&self, name: &RoomName) -> Result<(), ClientError> {
        send(self.api(Method::DELETE, &["rooms", name.as_str()])).await.map(drop)
    }

    /// Returns who shows themselves in a room.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn presence(&self, room: &RoomName) -> Result<Presence, ClientError> {
        fetch(self.api(Method::GET, &["rooms", room.as_str(), "presence"])).await
    }

    /// Publishes an event to a room.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn publish(&self, room: &RoomName, event: &PublishRequest) -> Result<Published, ClientError> {
        fetch(self.api(Method::POST, &["rooms", room.as_str(), "events"]).json(event)).await
    }

    /// Publishes events to a room in order, and returns what became of each.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn publish_batch(
        &self,
        room: &RoomName,
        events: Vec<PublishRequest>,
    ) -> Result<Vec<PublishItem>, ClientError> {
        let request = PublishBatchRequest { events };
        let response: PublishBatchResponse =
            fetch(self.api(Method::POST, &["rooms", room.as_str(), "events"]).json(&request)).await?;
        Ok(response.items)
    }

    /// Returns the events of a room after an offset, at most `limit` of them.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn history(&self, room: &RoomName, after: i64, limit: u32) -> Result<HistoryPage, ClientError> {
        let request = self.api(Method::GET, &["rooms", room.as_str(), "events"]);
        fetch(request.query(&[("after", after), ("limit", i64::from(limit))])).await
    }
}
