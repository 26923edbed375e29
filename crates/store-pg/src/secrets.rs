//! Named secrets; what is stored of them is encrypted above this crate.

use std::sync::Arc;

use async_trait::async_trait;
use switchboard_model::Timestamp;
use switchboard_model::identity::SecretName;
use switchboard_model::ids::SecretId;
use switchboard_model::page::{Page, PageRequest};
use switchboard_model::sealed::Sealed;
use switchboard_model::secret::{NewSecret, StoredSecret};
use switchboard_store_api::{SecretPutOutcome, SecretStore, StoreError, StoreResult, WriteContext};
use uuid::Uuid;

use crate::connect::Database;
use crate::context::{audit, twice};
use crate::error::fault;
use crate::rows::{after_name, parsed};

pub(crate) struct Secrets(pub(crate) Arc<Database>);

#[derive(sqlx::FromRow)]
struct SecretRow {
    id: Uuid,
    name: String,
    version: i64,
    sealed: Vec<u8>,
    created_at: Timestamp,
    updated_at: Timestamp,
}

impl TryFrom<SecretRow> for StoredSecret {
    type Error = StoreError;

    fn try_from(row: SecretRow) -> StoreResult<Self> {
        Ok(Self {
            id: SecretId::from_uuid(row.id),
            name: parsed("secret", &row.name)?,
            version: row.version,
            sealed: Sealed(row.sealed),
            created_at: row.created_at,
            updated_at: row.updated_at,
        })
    }
}

#[async_trait]
impl SecretStore for Secrets {
    #[tracing::instrument(name = "db.secrets.put", level = "debug", skip_all)]
    async fn put(
        &self,
        context: &WriteContext,
        secret: &NewSecret,
        expected: Option<i64>,
    ) -> StoreResult<SecretPutOutcome> {
        twice(|| self.put_once(context, secret, expected)).await
    }

    #[tracing::instrument(name = "db.secrets.find", level = "debug", skip_all)]
    async fn find(&self, names: &[SecretName]) -> StoreResult<Vec<StoredSecret>> {
        let names: Vec<&str> = names.iter().map(SecretName::as_str).collect();
        let mut session = self.0.session().await?;
        let rows: Vec<SecretRow> = sqlx::query_as(
            "-- secrets.find
             SELECT id, name, version, sealed, created_at, updated_at FROM switchboard.secrets
             WHERE name = ANY($1) ORDER BY name",
        )
        .bind(names)
        .fetch_all(&mut *session)
        .await
        .map_err(fault)?;
        rows.into_iter().map(StoredSecret::try_from).collect()
    }

    #[tracing::instrument(name = "db.secrets.list", level = "debug", skip_all)]
    async fn list(&self, page: &PageRequest) -> StoreResult<Page<StoredSecret>> {
        let after: Option<SecretName> = after_name(page)?;
        let mut session = self.0.session().await?;
        let rows: Vec<SecretRow> = sqlx::query_as(
            "-- secrets.list
             SELECT id, name, version, sealed, created_at, updated_at FROM switchboard.secrets
             WHERE name > $1 ORDER BY name LIMIT $2",
        )
        .bind(after.as_ref().map_or("", SecretName::as_str))
        .bind(i64::from(page.limit) + 1)
        .fetch_all(&mut *session)
        .await
        .map_err(fault)?;
        let secrets = rows.into_iter().map(StoredSecret::try_from).collect::<StoreResult<Vec<_>>>()?;
        Ok(Page::from_rows(secrets, page.limit, |secret| secret.name.to_string()))
    }

    #[tracing::instrument(name = "db.secrets.delete", level = "debug", skip_all)]
    async fn delete(&self, context: &WriteContext, name: &SecretName) -> StoreResult<bool> {
        let mut tx = self.0.begin().await?;
        let deleted = sqlx::query(
            "-- secrets.delete
             DELETE FROM switchboard.secrets WHERE name = $1",
        )
        .bind(name.as_str())
        .execute(&mut *tx)
        .await
        .map_err(fault)?
        .rows_affected();
        if deleted == 0 {
            return tx.undo(false).await;
        }
        audit(&mut tx, context).await?;
        tx.commit().await?;
        Ok(true)
    }
}

impl Secrets {
    async fn put_once(
        &self,
        context: &WriteContext,
        secret: &NewSecret,
        expected: Option<i64>,
    ) -> StoreResult<SecretPutOutcome> {
        let mut tx = self.0.begin().await?;
        let found: Option<(Uuid, i64)> = sqlx::query_as(
            "-- secrets.lock
             SELECT id, version FROM switchboard.secrets WHERE name = $1 FOR UPDATE",
        )
        .bind(secret.name.as_str())
        .fetch_optional(&mut *tx)
        .await
        .map_err(fault)?;
        let version = found.map_or(0, |(_, version)| version);
        if expected.is_some_and(|expected| expected != version) {
            return tx.undo(SecretPutOutcome::VersionMismatch(version)).await;
        }
        if found.is_some_and(|(id, _)| id != secret.id.as_uuid()) {
            return tx.undo(SecretPutOutcome::Moved).await;
        }
        let putting = if found.is_some() {
            sqlx::query_as(
                "-- secrets.replace
                 UPDATE switchboard.secrets
                 SET sealed = $3, version = version + 1, updated_at = clock_timestamp()
                 WHERE id = $1 AND name = $2
                 RETURNING id, name, version, sealed, created_at, updated_at",
            )
        } else {
            sqlx::query_as(
                "-- secrets.insert
                 INSERT INTO switchboard.secrets (id, name, version, sealed, created_at, updated_at)
                 SELECT $1, $2, 1, $3, now, now FROM (SELECT clock_timestamp() AS now) AS moment
                 RETURNING id, name, version, sealed, created_at, updated_at",
            )
        };
        let row: SecretRow = putting
            .bind(secret.id.as_uuid())
            .bind(secret.name.as_str())
            .bind(&secret.sealed.0)
            .fetch_one(&mut *tx)
            .await
            .map_err(fault)?;
        audit(&mut tx, context).await?;
        tx.commit().await?;
        row.try_into().map(SecretPutOutcome::Set)
    }
}
