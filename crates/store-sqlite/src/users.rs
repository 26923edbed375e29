//! Users: their rows, and what ends with them.

use async_trait::async_trait;
use sqlx::{FromRow, SqliteExecutor};
use switchboard_model::feed::SignalKind;
use switchboard_model::identity::{UserId, UserName};
use switchboard_model::json_text::JsonText;
use switchboard_model::page::{Page, PageRequest};
use switchboard_model::user::{NewUser, PasswordHash, User, UserEdit};
use switchboard_store_api::{
    Login, OnceRecord, PasswordChange, StoreResult, UserCreateOutcome, UserStore, UserUpdateOutcome, WriteContext,
    Written,
};
use uuid::Uuid;

use crate::error::DbResult;
use crate::rows::{Stored, cursor, instant};
use crate::writer::{Change, Lane};
use crate::{Database, auth_sessions, context};

async fn get(executor: impl SqliteExecutor<'_>, id: &UserId) -> DbResult<Option<User>> {
    let user: Option<Stored<User>> = sqlx::query_as(
        "-- users.get
        SELECT * FROM users WHERE id = ?",
    )
    .bind(id.as_str())
    .fetch_optional(executor)
    .await?;
    Ok(user.map(Stored::into_inner))
}

/// A user with the password that [`User`] leaves out.
#[derive(FromRow)]
struct LoginRow {
    #[sqlx(flatten)]
    user: Stored<User>,
    password: Option<String>,
}

async fn find_login(database: &Database, name: &UserName) -> DbResult<Option<Login>> {
    let found: Option<LoginRow> = sqlx::query_as(
        "-- users.find_login
        SELECT * FROM users WHERE name = ?",
    )
    .bind(name.as_str())
    .fetch_optional(&database.readers)
    .await?;
    let login = |LoginRow { user, password }| Login {
        user: Stored::into_inner(user),
        password: password.map(PasswordHash::from_phc),
    };
    Ok(found.map(login))
}

async fn list(database: &Database, page: &PageRequest) -> DbResult<Page<User>> {
    let rows: Vec<Stored<User>> = sqlx::query_as(
        "-- users.list
        SELECT * FROM users WHERE id > ? ORDER BY id LIMIT ?",
    )
    .bind(cursor(page, String::new())?)
    .bind(i64::from(page.limit) + 1)
    .fetch_all(&database.readers)
    .await?;
    Ok(Page::from_rows(rows, page.limit, |Stored(user)| user.id.to_string()).map(Stored::into_inner))
}

async fn create(change: &mut Change, context: WriteContext, user: NewUser) -> DbResult<Written<UserCreateOutcome>> {
    if let Some(replayed) = context::replay(change, &context).await? {
        return Ok(replayed);
    }
    // Two users may stand in the way; the name is what people can change.
    let other: Option<Stored<User>> = sqlx::query_as(
        "-- users.find_rival
        SELECT * FROM users WHERE id = ?1 OR name = ?2 ORDER BY name = ?2 DESC LIMIT 1",
    )
    .bind(user.id.as_str())
    .bind(user.name.as_str())
    .fetch_optional(&mut change.connection)
    .await?;
    if let Some(Stored(other)) = other {
        return Ok(Written::Now(UserCreateOutcome::Taken(other.id)));
    }
    sqlx::query(
        "-- users.create
        INSERT INTO users (id, name, role, password, created_at, updated_at) VALUES (?1, ?2, ?3, ?4, ?5, ?5)",
    )
    .bind(user.id.as_str())
    .bind(user.name.as_str())
    .bind(user.role.as_str())
    .bind(user.password.as_ref().map(PasswordHash::as_phc))
    .bind(change.now)
    .execute(&mut change.connection)
    .await?;
    context::complete_with(change, &context, record(&user.id)?).await?;
    let now = instant(change.now)?;
    Ok(Written::Now(UserCreateOutcome::Created(User {
        id: user.id,
        name: user.name,
        role: user.role,
        has_password: user.password.is_some(),
        is_disabled: false,
        version: 1,
        created_at: now,
        updated_at: now,
    })))
}

/// Makes what a once-key remembers of a new user; an identity that somebody else gave need not be a UUID.
fn record(id: &UserId) -> DbResult<OnceRecord> {
    Ok(match Uuid::parse_str(id.as_str()) {
        Ok(result_id) => OnceRecord { result_id, result: None },
        Err(_) => OnceRecord { result_id: Uuid::new_v4(), result: Some(JsonText::encode(id)?) },
    })
}

async fn update(
    change: &mut Change,
    context: WriteContext,
    (id, expected): (UserId, i64),
    edit: UserEdit,
) -> DbResult<UserUpdateOutcome> {
    let Some(user) = get(&mut change.connection, &id).await? else { return Ok(UserUpdateOutcome::NotFound) };
    if user.version != expected {
        return Ok(UserUpdateOutcome::VersionMismatch(user.version));
    }
    if (user.role, user.is_disabled) == (edit.role, edit.is_disabled) {
        return Ok(UserUpdateOutcome::Updated(user));
    }
    sqlx::query(
        "-- users.update
        UPDATE users SET role = ?, is_disabled = ?, version = version + 1, updated_at = ? WHERE id = ?",
    )
    .bind(edit.role.as_str())
    .bind(edit.is_disabled)
    .bind(change.now)
    .bind(id.as_str())
    .execute(&mut change.connection)
    .await?;
    if (edit.is_disabled && !user.is_disabled) || edit.role != user.role {
        revoke(change, &id).await?;
    }
    context::audit(change, &context).await?;
    Ok(UserUpdateOutcome::Updated(User {
        role: edit.role,
        is_disabled: edit.is_disabled,
        version: user.version + 1,
        updated_at: instant(change.now)?,
        ..user
    }))
}

async fn set_password(
    change: &mut Change,
    context: WriteContext,
    id: UserId,
    wanted: PasswordChange,
) -> DbResult<bool> {
    if let Some(kept) = wanted.keep
        && !auth_sessions::is_live(change, &id, kept).await?
    {
        return Ok(false);
    }
    let set = sqlx::query(
        "-- users.set_password
        UPDATE users SET password = ?1, version = version + 1, updated_at = ?2
        WHERE id = ?3 AND (?4 IS NULL OR password = ?4)",
    )
    .bind(wanted.new.as_phc())
    .bind(change.now)
    .bind(id.as_str())
    .bind(wanted.verified.as_ref().map(PasswordHash::as_phc))
    .execute(&mut change.connection)
    .await?;
    if set.rows_affected() == 0 {
        return Ok(false);
    }
    for session in auth_sessions::delete_of_user(change, &id, wanted.keep).await? {
        change.signal(SignalKind::SessionRevoked, session.to_string(), 0);
    }
    context::audit(change, &context).await?;
    Ok(true)
}

async fn rehash_password(change: &mut Change, id: UserId, old: PasswordHash, new: PasswordHash) -> DbResult<()> {
    sqlx::query(
        "-- users.rehash_password
        UPDATE users SET password = ? WHERE id = ? AND password = ?",
    )
    .bind(new.as_phc())
    .bind(id.as_str())
    .bind(old.as_phc())
    .execute(&mut change.connection)
    .await?;
    Ok(())
}

async fn delete(change: &mut Change, context: WriteContext, id: UserId) -> DbResult<bool> {
    let deleted = sqlx::query(
        "-- users.delete
        DELETE FROM users WHERE id = ?",
    )
    .bind(id.as_str())
    .execute(&mut change.connection)
    .await?;
    if deleted.rows_affected() == 0 {
        return Ok(false);
    }
    revoke(change, &id).await?;
    context::audit(change, &context).await?;
    Ok(true)
}

/// Ends all sessions and tickets of a user; one signal speaks of all.
async fn revoke(change: &mut Change, id: &UserId) -> DbResult<()> {
    auth_sessions::delete_of_user(change, id, None).await?;
    sqlx::query(
        "-- tickets.delete_of_user
        DELETE FROM tickets WHERE user_id = ?",
    )
    .bind(id.as_str())
    .execute(&mut change.connection)
    .await?;
    change.signal(SignalKind::UserRevoked, id.as_str(), 0);
    Ok(())
}

#[async_trait]
impl UserStore for Database {
    #[tracing::instrument(name = "db.users.create", level = "debug", skip_all)]
    async fn create(&self, context: &WriteContext, user: &NewUser) -> StoreResult<Written<UserCreateOutcome>> {
        let (context, user) = (context.clone(), user.clone());
        self.writer.write(Lane::Normal, |change| Box::pin(create(change, context, user))).await
    }

    #[tracing::instrument(name = "db.users.get", level = "debug", skip_all)]
    async fn get(&self, id: &UserId) -> StoreResult<Option<User>> {
        Ok(get(&self.readers, id).await?)
    }

    #[tracing::instrument(name = "db.users.find_login", level = "debug", skip_all)]
    async fn find_login(&self, name: &UserName) -> StoreResult<Option<Login>> {
        Ok(find_login(self, name).await?)
    }

    #[tracing::instrument(name = "db.users.list", level = "debug", skip_all)]
    async fn list(&self, page: &PageRequest) -> StoreResult<Page<User>> {
        Ok(list(self, page).await?)
    }

    #[tracing::instrument(name = "db.users.update", level = "debug", skip_all)]
    async fn update(
        &self,
        context: &WriteContext,
        id: &UserId,
        expected: i64,
        edit: &UserEdit,
    ) -> StoreResult<UserUpdateOutcome> {
        let (context, version, edit) = (context.clone(), (id.clone(), expected), *edit);
        self.writer.write(Lane::Normal, move |change| Box::pin(update(change, context, version, edit))).await
    }

    #[tracing::instrument(name = "db.users.set_password", level = "debug", skip_all)]
    async fn set_password(&self, context: &WriteContext, id: &UserId, wanted: &PasswordChange) -> StoreResult<bool> {
        let (context, id, wanted) = (context.clone(), id.clone(), wanted.clone());
        self.writer.write(Lane::Normal, move |change| Box::pin(set_password(change, context, id, wanted))).await
    }

    #[tracing::instrument(name = "db.users.rehash_password", level = "debug", skip_all)]
    async fn rehash_password(&self, id: &UserId, old: &PasswordHash, new: &PasswordHash) -> StoreResult<()> {
        let (id, old, new) = (id.clone(), old.clone(), new.clone());
        self.writer.write(Lane::Normal, |change| Box::pin(rehash_password(change, id, old, new))).await
    }

    #[tracing::instrument(name = "db.users.delete", level = "debug", skip_all)]
    async fn delete(&self, context: &WriteContext, id: &UserId) -> StoreResult<bool> {
        let (context, id) = (context.clone(), id.clone());
        self.writer.write(Lane::Normal, |change| Box::pin(delete(change, context, id))).await
    }
}
