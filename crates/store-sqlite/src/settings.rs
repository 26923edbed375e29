//! Settings of the whole fleet.

use async_trait::async_trait;
use sqlx::SqliteExecutor;
use switchboard_model::feed::SignalKind;
use switchboard_model::setting::{FleetSettings, Versioned};
use switchboard_store_api::{PutOutcome, SettingStore, StoreError, StoreResult, WriteContext};

use crate::error::DbResult;
use crate::writer::{Change, Lane};
use crate::{Database, context};

/// The name of the fleet settings, in their row and in their signal.
const FLEET: &str = "fleet";

/// Reads the fleet settings, or their defaults.
pub(crate) async fn fleet(executor: impl SqliteExecutor<'_>) -> DbResult<Versioned<FleetSettings>> {
    let stored: Option<(String, i64)> = sqlx::query_as(
        "-- settings.read
        SELECT value, version FROM settings WHERE name = ?",
    )
    .bind(FLEET)
    .fetch_optional(executor)
    .await?;
    let Some((value, version)) = stored else { return Ok(Versioned { version: 0, value: FleetSettings::default() }) };
    let value = serde_json::from_str(&value).map_err(|error| StoreError::corrupt("setting", error))?;
    Ok(Versioned { version, value })
}

async fn put_fleet(
    change: &mut Change,
    context: WriteContext,
    expected: i64,
    value: FleetSettings,
) -> DbResult<PutOutcome> {
    let found: Option<i64> = sqlx::query_scalar(
        "-- settings.version
        SELECT version FROM settings WHERE name = ?",
    )
    .bind(FLEET)
    .fetch_optional(&mut change.connection)
    .await?;
    let version = found.unwrap_or_default();
    if version != expected {
        return Ok(PutOutcome::VersionMismatch(version));
    }
    sqlx::query(
        "-- settings.put
        INSERT OR REPLACE INTO settings (name, value, version) VALUES (?, ?, ?)",
    )
    .bind(FLEET)
    .bind(serde_json::to_string(&value)?)
    .bind(version + 1)
    .execute(&mut change.connection)
    .await?;
    change.signal(SignalKind::SettingChanged, FLEET, version + 1);
    context::audit(change, &context).await?;
    Ok(PutOutcome::Written(version + 1))
}

#[async_trait]
impl SettingStore for Database {
    #[tracing::instrument(name = "db.settings.fleet", level = "debug", skip_all)]
    async fn fleet(&self) -> StoreResult<Versioned<FleetSettings>> {
        Ok(fleet(&self.readers).await?)
    }

    #[tracing::instrument(name = "db.settings.put_fleet", level = "debug", skip_all)]
    async fn put_fleet(&self, context: &WriteContext, expected: i64, value: &FleetSettings) -> StoreResult<PutOutcome> {
        let (context, value) = (context.clone(), value.clone());
        self.writer.write(Lane::Normal, move |change| Box::pin(put_fleet(change, context, expected, value))).await
    }
}
