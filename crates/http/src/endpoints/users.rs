//! Users, as administrators see them. What users do with their own account is a file of its own.

use axum::Json as Body;
use axum::extract::State;
use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use switchboard_model::auth_session::AuthSession;
use switchboard_model::identity::{UserId, UserName};
use switchboard_model::page::{MAX_PAGE, Page, PageRequest};
use switchboard_model::user::{NewUser, User, UserEdit};
use switchboard_model::wire::auth::{PasswordRequest, UserRequest, UserUpdate};
use switchboard_model::wire::code::ErrorCode;
use switchboard_store_api::{
    OnceClaim, OnceRecord, PasswordChange, UserCreateOutcome, UserUpdateOutcome, WriteContext, Written,
};
use uuid::Uuid;

use super::auth::{name_taken, new_user_id};
use crate::access::Caller;
use crate::answer::Created;
use crate::error::ApiError;
use crate::extract::{Json, PageQuery, Path, Query, page};
use crate::once::Once;
use crate::{ApiResult, App, AppState};

/// Makes a user.
pub(crate) async fn create(
    State(app): State<App>,
    caller: Caller,
    request: Once<UserRequest>,
) -> ApiResult<Created<User>> {
    let wanted = request.value;
    caller.require_all(&wanted.role.scopes())?;
    let password = match wanted.password {
        Some(password) => Some(app.passwords.hash("password", password).await?),
        None => None,
    };
    let id = wanted.id.map_or_else(new_user_id, Ok)?;
    let new = NewUser { id, name: wanted.name, role: wanted.role, password };
    let after = json!({"id": new.id, "name": new.name, "role": new.role, "has_password": new.password.is_some()});
    let context = caller.change("user.create", &new.id).after(&after)?.context();
    let context = WriteContext { once: request.claim.map(|claim| blinded(&app, claim)), ..context };
    let user = match app.stores.users.create(&context, &new).await? {
        Written::Now(UserCreateOutcome::Created(user)) => user,
        Written::Now(UserCreateOutcome::Taken(other)) if other == new.id => {
            return Err(ApiError::field(ErrorCode::Duplicate, "id", format!("user {other} exists already")));
        }
        Written::Now(UserCreateOutcome::Taken(_)) => return Err(name_taken(&new.name)),
        Written::Replayed(record) => {
            // The same request has the same name, but the user may have been deleted and the name given anew.
            let found = app.stores.users.find_login(&new.name).await?.map(|login| login.user);
            found.filter(|user| is_result(&record, &user.id)).ok_or_else(|| ApiError::replay_is_gone("user"))?
        }
        Written::Mismatch => return Err(ApiError::idempotency_mismatch()),
    };
    Ok(Created::new(&app.options, &format!("/api/v1/users/{}", user.id), user))
}

/// The hash of the request would let whoever reads the database try passwords fast.
fn blinded(app: &AppState, claim: OnceClaim) -> OnceClaim {
    OnceClaim { request_hash: app.options.auth.keys.blind(&claim.request_hash), ..claim }
}

/// Tells whether a once-key remembers this user: by UUID, or by an identity of another form.
fn is_result(record: &OnceRecord, id: &UserId) -> bool {
    match &record.result {
        Some(text) => serde_json::from_str::<UserId>(text.as_str()).is_ok_and(|remembered| remembered == *id),
        None => Uuid::parse_str(id.as_str()).is_ok_and(|uuid| uuid == record.result_id),
    }
}

/// Which users are listed.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct UserQuery {
    /// Only the user of this name.
    name: Option<UserName>,
    /// Where the previous page ended: its `next_cursor`.
    cursor: Option<String>,
    /// The most rows to return.
    #[schemars(range(min = 1, max = MAX_PAGE), extend("default" = PageRequest::default().limit))]
    limit: Option<u32>,
}

/// Lists users in the order of their identities, or the one of a name.
pub(crate) async fn list(State(app): State<App>, Query(query): Query<UserQuery>) -> ApiResult<Body<Page<User>>> {
    let UserQuery { name, cursor, limit } = query;
    let page = page(cursor, limit)?;
    let Some(name) = name else { return Ok(Body(app.stores.users.list(&page).await?)) };
    let found = app.stores.users.find_login(&name).await?;
    Ok(Body(Page { items: found.map(|login| login.user).into_iter().collect(), next_cursor: None }))
}

/// Returns a user.
pub(crate) async fn get(State(app): State<App>, Path(id): Path<UserId>) -> ApiResult<Body<User>> {
    existing(&app, &id).await.map(Body)
}

/// Edits a user, unless somebody did in between.
pub(crate) async fn update(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<UserId>,
    Json(update): Json<UserUpdate>,
) -> ApiResult<Body<User>> {
    let before = subject(&app, &caller, &id).await?;
    if before.version != update.version {
        // What was looked at for the permission and for the audit log must be what is edited.
        return Err(edited_in_between(before.version));
    }
    caller.require_all(&update.role.scopes())?;
    if update.is_disabled || update.role != before.role {
        refuse_self(&caller, &id, "disable yourself or change your own role")?;
    }
    let edit = UserEdit { role: update.role, is_disabled: update.is_disabled };
    let after = json!({"role": edit.role, "is_disabled": edit.is_disabled});
    let context = caller.change("user.update", &id).before(&before)?.after(&after)?.context();
    match app.stores.users.update(&context, &id, update.version, &edit).await? {
        UserUpdateOutcome::Updated(user) => Ok(Body(user)),
        UserUpdateOutcome::NotFound => Err(ApiError::not_found("user")),
        UserUpdateOutcome::VersionMismatch(version) => Err(edited_in_between(version)),
    }
}

fn edited_in_between(version: i64) -> ApiError {
    let detail = format!("the user was edited in between and has version {version} now; read it and edit again");
    ApiError::new(ErrorCode::VersionMismatch, detail)
}

/// Sets the password of somebody else and ends all their sessions.
pub(crate) async fn set_password(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<UserId>,
    Json(request): Json<PasswordRequest>,
) -> ApiResult<StatusCode> {
    refuse_self(&caller, &id, "set your own password here; POST /api/v1/auth/password asks for the old one")?;
    subject(&app, &caller, &id).await?;
    let password = app.passwords.hash("new", request.new).await?;
    let context = caller.change("user.set_password", &id).context();
    gone_or_done(app.stores.users.set_password(&context, &id, &PasswordChange::to(password)).await?)
}

/// Deletes a user with all their sessions.
pub(crate) async fn delete(State(app): State<App>, caller: Caller, Path(id): Path<UserId>) -> ApiResult<StatusCode> {
    refuse_self(&caller, &id, "delete yourself")?;
    let before = subject(&app, &caller, &id).await?;
    let context = caller.change("user.delete", &id).before(&before)?.context();
    gone_or_done(app.stores.users.delete(&context, &id).await?)
}

/// Lists the sessions of a user.
pub(crate) async fn sessions(
    State(app): State<App>,
    Path(id): Path<UserId>,
    Query(query): Query<PageQuery>,
) -> ApiResult<Body<Page<AuthSession>>> {
    let page = query.page()?;
    existing(&app, &id).await?;
    Ok(Body(app.stores.auth_sessions.list(&id, &page).await?))
}

/// Ends all sessions of a user.
pub(crate) async fn end_sessions(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<UserId>,
) -> ApiResult<StatusCode> {
    subject(&app, &caller, &id).await?;
    let context = caller.change("user.end_sessions", &id).context();
    app.stores.auth_sessions.end_all(&context, &id, None).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn existing(app: &AppState, id: &UserId) -> ApiResult<User> {
    app.stores.users.get(id).await?.ok_or_else(|| ApiError::not_found("user"))
}

/// Finds a user whom the caller may change: whoever could act as them holds what they hold.
async fn subject(app: &AppState, caller: &Caller, id: &UserId) -> ApiResult<User> {
    let user = existing(app, id).await?;
    caller.require_all(&user.role.scopes())?;
    Ok(user)
}

/// Nobody locks themselves out.
fn refuse_self(caller: &Caller, id: &UserId, what: &str) -> ApiResult<()> {
    if caller.user_id() == Some(id) {
        return Err(ApiError::new(ErrorCode::Forbidden, format!("you cannot {what}")));
    }
    Ok(())
}

fn gone_or_done(was_there: bool) -> ApiResult<StatusCode> {
    if was_there { Ok(StatusCode::NO_CONTENT) } else { Err(ApiError::not_found("user")) }
}
