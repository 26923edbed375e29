//! Fleet settings: one row, replaced by compare-and-set.

use std::sync::Arc;

use async_trait::async_trait;
use switchboard_model::feed::SignalKind;
use switchboard_model::json_text::JsonText;
use switchboard_model::setting::{FleetSettings, Versioned};
use switchboard_store_api::{PutOutcome, SettingStore, StoreError, StoreResult, WriteContext};

use crate::connect::Database;
use crate::context::audit;
use crate::error::fault;
use crate::link::Link;

pub(crate) struct Settings(pub(crate) Arc<Database>);

/// The name of the row; the statement that leases runs reads it too.
const FLEET: &str = "fleet";

#[async_trait]
impl SettingStore for Settings {
    #[tracing::instrument(name = "db.settings.fleet", level = "debug", skip_all)]
    async fn fleet(&self) -> StoreResult<Versioned<FleetSettings>> {
        let mut session = self.0.session().await?;
        let Some((value, version)) = read(&mut session).await? else {
            return Ok(Versioned { version: 0, value: FleetSettings::default() });
        };
        let value = serde_json::from_str(&value).map_err(|error| StoreError::corrupt("fleet settings", error))?;
        Ok(Versioned { version, value })
    }

    #[tracing::instrument(name = "db.settings.put_fleet", level = "debug", skip_all)]
    async fn put_fleet(&self, context: &WriteContext, expected: i64, value: &FleetSettings) -> StoreResult<PutOutcome> {
        let text = JsonText::encode(value).map_err(|error| StoreError::Backend(error.into()))?;
        let mut tx = self.0.begin().await?;
        let put = if expected == 0 {
            sqlx::query_scalar(
                "-- settings.insert
                 INSERT INTO switchboard.settings (name, value, version) VALUES ($1, $2, $3 + 1)
                 ON CONFLICT (name) DO NOTHING RETURNING version",
            )
        } else {
            sqlx::query_scalar(
                "-- settings.replace
                 UPDATE switchboard.settings SET value = $2, version = version + 1
                 WHERE name = $1 AND version = $3 RETURNING version",
            )
        };
        let written: Option<i64> =
            put.bind(FLEET).bind(text.as_str()).bind(expected).fetch_optional(&mut *tx).await.map_err(fault)?;
        let Some(version) = written else {
            let version = read(&mut tx).await?.map_or(0, |(_, version)| version);
            return tx.undo(PutOutcome::VersionMismatch(version)).await;
        };
        audit(&mut tx, context).await?;
        tx.signal(SignalKind::SettingChanged, &FLEET);
        tx.commit().await?;
        Ok(PutOutcome::Written(version))
    }
}

async fn read(connection: &mut Link) -> StoreResult<Option<(String, i64)>> {
    sqlx::query_as(
        "-- settings.find
         SELECT value, version FROM switchboard.settings WHERE name = $1",
    )
    .bind(FLEET)
    .fetch_optional(connection)
    .await
    .map_err(fault)
}
