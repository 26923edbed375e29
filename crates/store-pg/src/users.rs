//! Users: the row of a user is locked before anything that hangs on it is started or ended.

use std::sync::Arc;

use async_trait::async_trait;
use switchboard_model::Timestamp;
use switchboard_model::feed::SignalKind;
use switchboard_model::identity::{UserId, UserName};
use switchboard_model::json_text::JsonText;
use switchboard_model::page::{Page, PageRequest};
use switchboard_model::user::{NewUser, PasswordHash, User, UserEdit};
use switchboard_store_api::{
    Login, OnceRecord, PasswordChange, StoreError, StoreResult, UserCreateOutcome, UserStore, UserUpdateOutcome,
    WriteContext, Written,
};
use uuid::Uuid;

use crate::auth_sessions::{forget, lock_live, lock_of_user};
use crate::connect::{Database, Tx};
use crate::context::{audit, claim, collided, complete, twice};
use crate::error::fault;
use crate::link::Link;
use crate::rows::{after_name, parsed};

pub(crate) struct Users(pub(crate) Arc<Database>);

#[derive(sqlx::FromRow)]
pub(crate) struct UserRow {
    id: String,
    name: String,
    role: String,
    has_password: bool,
    is_disabled: bool,
    version: i64,
    created_at: Timestamp,
    updated_at: Timestamp,
}

impl TryFrom<UserRow> for User {
    type Error = StoreError;

    fn try_from(row: UserRow) -> StoreResult<Self> {
        Ok(Self {
            id: parsed("user", &row.id)?,
            name: parsed("user", &row.name)?,
            role: parsed("user", &row.role)?,
            has_password: row.has_password,
            is_disabled: row.is_disabled,
            version: row.version,
            created_at: row.created_at,
            updated_at: row.updated_at,
        })
    }
}

#[derive(sqlx::FromRow)]
struct LoginRow {
    #[sqlx(flatten)]
    user: UserRow,
    password: Option<String>,
}

#[async_trait]
impl UserStore for Users {
    #[tracing::instrument(name = "db.users.create", level = "debug", skip_all)]
    async fn create(&self, context: &WriteContext, user: &NewUser) -> StoreResult<Written<UserCreateOutcome>> {
        twice(|| create(&self.0, context, user)).await
    }

    #[tracing::instrument(name = "db.users.get", level = "debug", skip_all)]
    async fn get(&self, id: &UserId) -> StoreResult<Option<User>> {
        let mut session = self.0.session().await?;
        let row: Option<UserRow> = sqlx::query_as(
            "-- users.get
             SELECT id, name, role, password IS NOT NULL AS has_password, is_disabled, version, created_at, updated_at
             FROM switchboard.users WHERE id = $1",
        )
        .bind(id.as_str())
        .fetch_optional(&mut *session)
        .await
        .map_err(fault)?;
        row.map(User::try_from).transpose()
    }

    #[tracing::instrument(name = "db.users.find_login", level = "debug", skip_all)]
    async fn find_login(&self, name: &UserName) -> StoreResult<Option<Login>> {
        let mut session = self.0.session().await?;
        let row: Option<LoginRow> = sqlx::query_as(
            "-- users.find_login
             SELECT id, name, role, password IS NOT NULL AS has_password, is_disabled, version, created_at, updated_at,
                    password
             FROM switchboard.users WHERE name = $1",
        )
        .bind(name.as_str())
        .fetch_optional(&mut *session)
        .await
        .map_err(fault)?;
        let login = |LoginRow { user, password }| {
            Ok(Login { user: user.try_into()?, password: password.map(PasswordHash::from_phc) })
        };
        row.map(login).transpose()
    }

    #[tracing::instrument(name = "db.users.list", level = "debug", skip_all)]
    async fn list(&self, page: &PageRequest) -> StoreResult<Page<User>> {
        let after: Option<UserId> = after_name(page)?;
        let mut session = self.0.session().await?;
        let rows: Vec<UserRow> = sqlx::query_as(
            "-- users.list
             SELECT id, name, role, password IS NOT NULL AS has_password, is_disabled, version, created_at, updated_at
             FROM switchboard.users WHERE id > $1 ORDER BY id LIMIT $2",
        )
        .bind(after.as_ref().map_or("", UserId::as_str))
        .bind(i64::from(page.limit) + 1)
        .fetch_all(&mut *session)
        .await
        .map_err(fault)?;
        let users = rows.into_iter().map(User::try_from).collect::<StoreResult<Vec<_>>>()?;
        Ok(Page::from_rows(users, page.limit, |user| user.id.to_string()))
    }

    #[tracing::instrument(name = "db.users.update", level = "debug", skip_all)]
    async fn update(
        &self,
        context: &WriteContext,
        id: &UserId,
        expected: i64,
        edit: &UserEdit,
    ) -> StoreResult<UserUpdateOutcome> {
        let mut tx = self.0.begin().await?;
        let Some(before) = lock(&mut tx, id).await? else { return tx.undo(UserUpdateOutcome::NotFound).await };
        if before.version != expected {
            return tx.undo(UserUpdateOutcome::VersionMismatch(before.version)).await;
        }
        if (before.role, before.is_disabled) == (edit.role, edit.is_disabled) {
            return tx.undo(UserUpdateOutcome::Updated(before)).await;
        }
        let after: UserRow = sqlx::query_as(
            "-- users.update
             UPDATE switchboard.users
             SET role = $2, is_disabled = $3, version = version + 1, updated_at = clock_timestamp()
             WHERE id = $1
             RETURNING id, name, role, password IS NOT NULL AS has_password, is_disabled, version, created_at,
                       updated_at",
        )
        .bind(id.as_str())
        .bind(edit.role.as_str())
        .bind(edit.is_disabled)
        .fetch_one(&mut *tx)
        .await
        .map_err(fault)?;
        if (edit.is_disabled && !before.is_disabled) || edit.role != before.role {
            revoke(&mut tx, id).await?;
        }
        audit(&mut tx, context).await?;
        tx.commit().await?;
        after.try_into().map(UserUpdateOutcome::Updated)
    }

    #[tracing::instrument(name = "db.users.set_password", level = "debug", skip_all)]
    async fn set_password(&self, context: &WriteContext, id: &UserId, change: &PasswordChange) -> StoreResult<bool> {
        let mut tx = self.0.begin().await?;
        let updated = sqlx::query(
            "-- users.set_password
             UPDATE switchboard.users SET password = $2, version = version + 1, updated_at = clock_timestamp()
             WHERE id = $1 AND ($3::text IS NULL OR password = $3)",
        )
        .bind(id.as_str())
        .bind(change.new.as_phc())
        .bind(change.verified.as_ref().map(PasswordHash::as_phc))
        .execute(&mut *tx)
        .await
        .map_err(fault)?
        .rows_affected();
        if updated == 0 {
            return tx.undo(false).await;
        }
        if let Some(kept) = change.keep
            && !lock_live(&mut tx, id, kept).await?
        {
            return tx.undo(false).await;
        }
        let sessions = lock_of_user(&mut tx, id, change.keep).await?;
        forget(&mut tx, &sessions, None).await?;
        for session in &sessions {
            tx.signal(SignalKind::SessionRevoked, session);
        }
        audit(&mut tx, context).await?;
        tx.commit().await?;
        Ok(true)
    }

    #[tracing::instrument(name = "db.users.rehash_password", level = "debug", skip_all)]
    async fn rehash_password(&self, id: &UserId, old: &PasswordHash, new: &PasswordHash) -> StoreResult<()> {
        let mut session = self.0.session().await?;
        sqlx::query(
            "-- users.rehash_password
             UPDATE switchboard.users SET password = $3 WHERE id = $1 AND password = $2",
        )
        .bind(id.as_str())
        .bind(old.as_phc())
        .bind(new.as_phc())
        .execute(&mut *session)
        .await
        .map_err(fault)?;
        session.commit().await
    }

    #[tracing::instrument(name = "db.users.delete", level = "debug", skip_all)]
    async fn delete(&self, context: &WriteContext, id: &UserId) -> StoreResult<bool> {
        let mut tx = self.0.begin().await?;
        let deleted = sqlx::query(
            "-- users.delete
             DELETE FROM switchboard.users WHERE id = $1",
        )
        .bind(id.as_str())
        .execute(&mut *tx)
        .await
        .map_err(fault)?
        .rows_affected();
        if deleted == 0 {
            return tx.undo(false).await;
        }
        revoke(&mut tx, id).await?;
        audit(&mut tx, context).await?;
        tx.commit().await?;
        Ok(true)
    }
}

async fn create(
    database: &Arc<Database>,
    context: &WriteContext,
    user: &NewUser,
) -> StoreResult<Written<UserCreateOutcome>> {
    let record = record_of(&user.id)?;
    let mut tx = database.begin().await?;
    if let Some(before) = claim(&mut tx, context, record.result_id).await? {
        return tx.undo(before).await;
    }
    let created: Option<UserRow> = sqlx::query_as(
        "-- users.create
         INSERT INTO switchboard.users (id, name, role, password, created_at, updated_at)
         SELECT $1, $2, $3, $4, moment.now, moment.now FROM (SELECT clock_timestamp() AS now) AS moment
         ON CONFLICT DO NOTHING
         RETURNING id, name, role, password IS NOT NULL AS has_password, is_disabled, version, created_at, updated_at",
    )
    .bind(user.id.as_str())
    .bind(user.name.as_str())
    .bind(user.role.as_str())
    .bind(user.password.as_ref().map(PasswordHash::as_phc))
    .fetch_optional(&mut *tx)
    .await
    .map_err(fault)?;
    let Some(created) = created else {
        let holder = holder_of(&mut tx, user).await?.ok_or_else(collided)?;
        return tx.undo(Written::Now(UserCreateOutcome::Taken(holder))).await;
    };
    if record.result.is_some() {
        complete(&mut tx, context, &record).await?;
    }
    audit(&mut tx, context).await?;
    tx.commit().await?;
    created.try_into().map(|user| Written::Now(UserCreateOutcome::Created(user)))
}

/// What a once-key remembers of a new user: the identity, which need not be a UUID when somebody else gave it.
fn record_of(id: &UserId) -> StoreResult<OnceRecord> {
    Ok(match Uuid::parse_str(id.as_str()) {
        Ok(result_id) => OnceRecord { result_id, result: None },
        Err(_) => {
            let result = JsonText::encode(id).map_err(|error| StoreError::Backend(error.into()))?;
            OnceRecord { result_id: Uuid::new_v4(), result: Some(result) }
        }
    })
}

/// Finds the user who has the name, or else the identity, of a new one.
async fn holder_of(connection: &mut Link, user: &NewUser) -> StoreResult<Option<UserId>> {
    let id: Option<String> = sqlx::query_scalar(
        "-- users.holder_of_name
         SELECT id FROM switchboard.users WHERE name = $2 OR id = $1 ORDER BY name = $2 DESC LIMIT 1",
    )
    .bind(user.id.as_str())
    .bind(user.name.as_str())
    .fetch_optional(connection)
    .await
    .map_err(fault)?;
    id.map(|id| parsed("user", &id)).transpose()
}

async fn lock(tx: &mut Tx, id: &UserId) -> StoreResult<Option<User>> {
    let row: Option<UserRow> = sqlx::query_as(
        "-- users.lock
         SELECT id, name, role, password IS NOT NULL AS has_password, is_disabled, version, created_at, updated_at
         FROM switchboard.users WHERE id = $1 FOR NO KEY UPDATE",
    )
    .bind(id.as_str())
    .fetch_optional(&mut **tx)
    .await
    .map_err(fault)?;
    row.map(User::try_from).transpose()
}

/// Ends all sessions and tickets of a user, under the lock on the user that a session needs to start. One
/// signal says it of all of them.
async fn revoke(tx: &mut Tx, id: &UserId) -> StoreResult<()> {
    let sessions = lock_of_user(tx, id, None).await?;
    forget(tx, &sessions, Some(id)).await?;
    tx.signal(SignalKind::UserRevoked, id);
    Ok(())
}
