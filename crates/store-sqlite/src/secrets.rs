//! Named secrets; what is stored of them is encrypted above this crate.

use async_trait::async_trait;
use sqlx::sqlite::SqliteRow;
use sqlx::{FromRow, Row as _};
use switchboard_model::identity::SecretName;
use switchboard_model::ids::SecretId;
use switchboard_model::page::{Page, PageRequest};
use switchboard_model::sealed::Sealed;
use switchboard_model::secret::{NewSecret, StoredSecret};
use switchboard_store_api::{SecretPutOutcome, SecretStore, StoreResult, WriteContext};

use crate::error::DbResult;
use crate::rows::{Stored, cursor, parsed, time};
use crate::writer::{Change, Lane};
use crate::{Database, context};

impl FromRow<'_, SqliteRow> for Stored<StoredSecret> {
    fn from_row(row: &SqliteRow) -> sqlx::Result<Self> {
        Ok(Self(StoredSecret {
            id: SecretId::from_uuid(row.try_get("id")?),
            name: parsed(row, "name")?,
            version: row.try_get("version")?,
            sealed: Sealed(row.try_get("sealed")?),
            created_at: time(row, "created_at")?,
            updated_at: time(row, "updated_at")?,
        }))
    }
}

async fn put(
    change: &mut Change,
    context: WriteContext,
    secret: NewSecret,
    expected: Option<i64>,
) -> DbResult<SecretPutOutcome> {
    let found: Option<Stored<StoredSecret>> = sqlx::query_as(
        "-- secrets.find_one
        SELECT * FROM secrets WHERE name = ?",
    )
    .bind(secret.name.as_str())
    .fetch_optional(&mut change.connection)
    .await?;
    let found = found.map(Stored::into_inner);
    let version = found.as_ref().map_or(0, |found| found.version);
    if expected.is_some_and(|expected| expected != version) {
        return Ok(SecretPutOutcome::VersionMismatch(version));
    }
    if found.is_some_and(|found| found.id != secret.id) {
        return Ok(SecretPutOutcome::Moved);
    }
    let Stored(set) = sqlx::query_as(
        "-- secrets.put
        INSERT INTO secrets (id, name, version, sealed, created_at, updated_at) VALUES (?1, ?2, 1, ?3, ?4, ?4)
        ON CONFLICT (name) DO UPDATE
            SET sealed = excluded.sealed, version = version + 1, updated_at = excluded.updated_at
        RETURNING *",
    )
    .bind(secret.id.as_uuid())
    .bind(secret.name.as_str())
    .bind(secret.sealed.0)
    .bind(change.now)
    .fetch_one(&mut change.connection)
    .await?;
    context::audit(change, &context).await?;
    Ok(SecretPutOutcome::Set(set))
}

async fn find(database: &Database, names: &[SecretName]) -> DbResult<Vec<StoredSecret>> {
    let rows: Vec<Stored<StoredSecret>> = sqlx::query_as(
        "-- secrets.find
        SELECT * FROM secrets WHERE name IN (SELECT value FROM json_each(?)) ORDER BY name",
    )
    .bind(serde_json::to_string(names)?)
    .fetch_all(&database.readers)
    .await?;
    Ok(rows.into_iter().map(Stored::into_inner).collect())
}

async fn list(database: &Database, page: &PageRequest) -> DbResult<Page<StoredSecret>> {
    let rows: Vec<Stored<StoredSecret>> = sqlx::query_as(
        "-- secrets.list
        SELECT * FROM secrets WHERE name > ? ORDER BY name LIMIT ?",
    )
    .bind(cursor(page, String::new())?)
    .bind(i64::from(page.limit) + 1)
    .fetch_all(&database.readers)
    .await?;
    Ok(Page::from_rows(rows, page.limit, |Stored(secret)| secret.name.to_string()).map(Stored::into_inner))
}

async fn delete(change: &mut Change, context: WriteContext, name: SecretName) -> DbResult<bool> {
    let deleted = sqlx::query(
        "-- secrets.delete
        DELETE FROM secrets WHERE name = ?",
    )
    .bind(name.as_str())
    .execute(&mut change.connection)
    .await?;
    if deleted.rows_affected() == 0 {
        return Ok(false);
    }
    context::audit(change, &context).await?;
    Ok(true)
}

#[async_trait]
impl SecretStore for Database {
    #[tracing::instrument(name = "db.secrets.put", level = "debug", skip_all)]
    async fn put(
        &self,
        context: &WriteContext,
        secret: &NewSecret,
        expected: Option<i64>,
    ) -> StoreResult<SecretPutOutcome> {
        let (context, secret) = (context.clone(), secret.clone());
        self.writer.write(Lane::Normal, move |change| Box::pin(put(change, context, secret, expected))).await
    }

    #[tracing::instrument(name = "db.secrets.find", level = "debug", skip_all)]
    async fn find(&self, names: &[SecretName]) -> StoreResult<Vec<StoredSecret>> {
        Ok(find(self, names).await?)
    }

    #[tracing::instrument(name = "db.secrets.list", level = "debug", skip_all)]
    async fn list(&self, page: &PageRequest) -> StoreResult<Page<StoredSecret>> {
        Ok(list(self, page).await?)
    }

    #[tracing::instrument(name = "db.secrets.delete", level = "debug", skip_all)]
    async fn delete(&self, context: &WriteContext, name: &SecretName) -> StoreResult<bool> {
        let (context, name) = (context.clone(), name.clone());
        self.writer.write(Lane::Normal, move |change| Box::pin(delete(change, context, name))).await
    }
}
