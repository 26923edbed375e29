//! Settings of the fleet over REST.

use reqwest::Method;
use switchboard_model::setting::{FleetSettings, Versioned};

use crate::client::{Client, fetch};
use crate::error::ClientError;

impl Client {
    /// Returns the settings that every replica obeys.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn fleet_settings(&self) -> Result<Versioned<FleetSettings>, ClientError> {
        fetch(self.api(Method::GET, &["settings", "fleet"])).await
    }

    /// Replaces the settings, unless somebody did in between; `version` is the one that was edited.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn put_fleet_settings(
        &self,
        settings: &Versioned<FleetSettings>,
    ) -> Result<Versioned<FleetSettings>, ClientError> {
        fetch(self.api(Method::PUT, &["settings", "fleet"]).json(settings)).await
    }
}
