//! Sign-in: accounts by registration, sessions by password, tokens by session, and what users do with their own.

use axum::Json as Body;
use axum::extract::State;
use axum::http::header::USER_AGENT;
use axum::http::{HeaderMap, StatusCode};
use switchboard_model::auth_session::{AuthSession, NewAuthSession, REFRESH_PREFIX};
use switchboard_model::identity::{Actor, UserId, UserName};
use switchboard_model::ids::SessionId;
use switchboard_model::page::Page;
use switchboard_model::secret_text::SecretText;
use switchboard_model::user::{NewUser, PasswordHash, User, UserRole};
use switchboard_model::wire::auth::{
    LoginRequest, LogoutRequest, Me, Password, PasswordRequest, RefreshRequest, TokenResponse,
};
use switchboard_model::wire::code::ErrorCode;
use switchboard_store_api::{AuditEntry, RefreshOutcome, UserCreateOutcome, WriteContext};
use uuid::Uuid;

use crate::access::Caller;
use crate::answer::new_secret;
use crate::auth::passwords::Verdict;
use crate::auth::tokens;
use crate::client_address::ClientAddress;
use crate::error::ApiError;
use crate::extract::{Json, PageQuery, Path, Query};
use crate::limits::limit_login;
use crate::middleware::RequestId;
use crate::{ApiResult, App, AppState};

/// The longest refresh token that is looked up, in bytes.
const REFRESH_BYTES: usize = 200;

/// How much is kept of what a client calls itself, in characters.
const CLIENT_CHARS: usize = 200;

/// The values of the labels of the metrics.
const SIGNED_IN: &str = "signed_in";
const REFUSED: &str = "refused";
const REFRESHED: &str = "refreshed";
const REUSED: &str = "reused";
const INVALID: &str = "invalid";

/// Registers the metrics of sign-in at zero.
pub(crate) fn describe_metrics() {
    for outcome in [SIGNED_IN, REFUSED] {
        metrics::counter!("switchboard_auth_logins_total", "outcome" => outcome).absolute(0);
    }
    for outcome in [REFRESHED, REUSED, INVALID] {
        metrics::counter!("switchboard_auth_refreshes_total", "outcome" => outcome).absolute(0);
    }
}

fn count_login(outcome: &'static str) {
    metrics::counter!("switchboard_auth_logins_total", "outcome" => outcome).increment(1);
}

fn count_refresh(outcome: &'static str) {
    metrics::counter!("switchboard_auth_refreshes_total", "outcome" => outcome).increment(1);
}

/// Makes an account, where that is on, and signs its owner in.
pub(crate) async fn register(
    State(app): State<App>,
    address: ClientAddress,
    request_id: RequestId,
    headers: HeaderMap,
    Json(request): Json<LoginRequest>,
) -> ApiResult<(StatusCode, Body<TokenResponse>)> {
    if !app.options.auth.registration {
        return Err(ApiError::new(ErrorCode::NotFound, "nobody registers here; ask an administrator for an account"));
    }
    limit_login(&app, &request.name, address).await?;
    let password = app.passwords.hash("password", request.password).await?;
    let new = NewUser { id: new_user_id()?, name: request.name, role: UserRole::User, password: Some(password) };
    let entry = AuditEntry { action: "auth.register", subject: new.id.to_string(), before: None, after: None };
    let context = WriteContext {
        actor: Actor::User(new.id.clone()),
        request_id: request_id.0.clone(),
        once: None,
        audit: Some(entry),
    };
    let outcome = app.stores.users.create(&context, &new).await?.now().ok_or_else(ApiError::internal)?;
    let UserCreateOutcome::Created(user) = outcome else { return Err(name_taken(&new.name)) };
    let tokens = sign_in(&app, user, &headers, request_id).await?.ok_or_else(wrong)?;
    Ok((StatusCode::CREATED, Body(tokens)))
}

/// Signs a user in. An unknown user, a wrong password, none and a disabled account answer alike, after as much
/// work.
pub(crate) async fn login(
    State(app): State<App>,
    address: ClientAddress,
    request_id: RequestId,
    headers: HeaderMap,
    Json(LoginRequest { name, password }): Json<LoginRequest>,
) -> ApiResult<Body<TokenResponse>> {
    limit_login(&app, &name, address).await?;
    let (user, stored) = match app.stores.users.find_login(&name).await? {
        Some(login) => (Some(login.user), login.password),
        None => (None, None),
    };
    let verdict = app.passwords.verify(password, stored.clone()).await?;
    let user = user.filter(|user| !user.is_disabled && !matches!(verdict, Verdict::Wrong));
    let tokens = match user {
        Some(user) => {
            renew_hash(&app, &user.id, stored, verdict).await;
            sign_in(&app, user, &headers, request_id).await?
        }
        None => None,
    };
    count_login(if tokens.is_some() { SIGNED_IN } else { REFUSED });
    tokens.map(Body).ok_or_else(|| {
        tracing::info!("a sign-in was refused");
        wrong()
    })
}

fn wrong() -> ApiError {
    ApiError::unauthorized("the name or the password is wrong")
}

/// Replaces a hash of outdated cost; if that fails, the next sign-in tries again.
async fn renew_hash(app: &AppState, user: &UserId, old: Option<PasswordHash>, verdict: Verdict) {
    let (Some(old), Verdict::Outdated(new)) = (old, verdict) else { return };
    if let Err(error) = app.stores.users.rehash_password(user, &old, &new).await {
        tracing::warn!(%error, "the hash of a password could not be renewed");
    }
}

/// Starts a session; `None` when the user was disabled, deleted or edited meanwhile.
async fn sign_in(
    app: &AppState,
    user: User,
    headers: &HeaderMap,
    request_id: RequestId,
) -> ApiResult<Option<TokenResponse>> {
    let auth = &app.options.auth;
    let refresh = new_secret(REFRESH_PREFIX)?;
    let client = headers.get(USER_AGENT).and_then(|value| value.to_str().ok());
    let new = NewAuthSession {
        id: SessionId::new(),
        user_id: user.id.clone(),
        user_version: Some(user.version),
        client: client.map(|text| text.chars().take(CLIENT_CHARS).collect()),
        refresh: refresh.hash(),
        idle_ttl: auth.idle_ttl,
        ttl: auth.session_ttl,
    };
    let answer = tokens_of(app, user, new.id, &refresh)?;
    let caller = Caller::signing_in(&answer.user, new.id, request_id);
    let context = caller.change("auth.login", new.id).context();
    Ok(app.stores.auth_sessions.start(&context, &new).await?.map(|_| answer))
}

fn tokens_of(app: &AppState, user: User, session_id: SessionId, refresh: &SecretText) -> ApiResult<TokenResponse> {
    let auth = &app.options.auth;
    let access_token = tokens::mint(auth, &user, session_id, app.now()?).map_err(|error| {
        tracing::error!(%error, "an access token could not be signed");
        ApiError::internal()
    })?;
    Ok(TokenResponse {
        access_token,
        token_type: "Bearer".to_owned(),
        expires_in: auth.access_ttl.to_std().as_secs(),
        refresh_token: refresh.expose().to_owned(),
        session_id,
        user,
    })
}

/// Gives the next tokens of a session. Equal requests have equal answers until the new token is used, so that a
/// lost answer signs nobody out; an older token ends the session.
pub(crate) async fn refresh(
    State(app): State<App>,
    request_id: RequestId,
    Json(request): Json<RefreshRequest>,
) -> ApiResult<Body<TokenResponse>> {
    let presented = SecretText::from_presented(request.refresh_token);
    // What cannot be a token costs no query, and an answer that cannot be given uses up no token.
    app.now()?;
    if !presented.expose().starts_with(REFRESH_PREFIX) || presented.expose().len() > REFRESH_BYTES {
        count_refresh(INVALID);
        return Err(no_refresh());
    }
    let auth = &app.options.auth;
    let successor = auth.keys.successor(presented.expose());
    let entry =
        AuditEntry { action: "auth.refresh_reused", subject: "refresh_token".to_owned(), before: None, after: None };
    let context =
        WriteContext { actor: Actor::System("auth"), request_id: request_id.0, once: None, audit: Some(entry) };
    let refreshing = app.stores.auth_sessions.refresh(&context, presented.hash(), successor.hash(), auth.idle_ttl);
    match refreshing.await? {
        RefreshOutcome::Refreshed(signed_in) => {
            count_refresh(REFRESHED);
            tokens_of(&app, signed_in.user, signed_in.session.id, &successor).map(Body)
        }
        RefreshOutcome::Reused(session) => {
            count_refresh(REUSED);
            tracing::warn!(session = %session.id, user = %session.user_id, "an old refresh token ended its session");
            Err(no_refresh())
        }
        RefreshOutcome::Invalid => {
            count_refresh(INVALID);
            Err(no_refresh())
        }
    }
}

fn no_refresh() -> ApiError {
    ApiError::unauthorized("the refresh token is not valid; sign in again")
}

/// Signs the caller out, here or everywhere.
pub(crate) async fn logout(
    State(app): State<App>,
    caller: Caller,
    Json(request): Json<LogoutRequest>,
) -> ApiResult<StatusCode> {
    let (user, session) = caller.require_session()?;
    if request.everywhere {
        let context = caller.change("auth.logout_everywhere", user).context();
        app.stores.auth_sessions.end_all(&context, user, None).await?;
    } else {
        let context = caller.change("auth.logout", session).context();
        app.stores.auth_sessions.end(&context, user, session).await?;
    }
    Ok(StatusCode::NO_CONTENT)
}

/// Says who the caller is and what they may do.
pub(crate) async fn me(caller: Caller) -> Body<Me> {
    Body(caller.describe())
}

/// Lists the caller's own sessions.
pub(crate) async fn sessions(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<PageQuery>,
) -> ApiResult<Body<Page<AuthSession>>> {
    Ok(Body(app.stores.auth_sessions.list(caller.require_user()?, &query.page()?).await?))
}

/// Ends one of the caller's own sessions.
pub(crate) async fn end_session(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<SessionId>,
) -> ApiResult<StatusCode> {
    let context = caller.change("auth.end_session", id).context();
    if app.stores.auth_sessions.end(&context, caller.require_user()?, id).await? {
        Ok(StatusCode::NO_CONTENT)
    } else {
        Err(ApiError::not_found("session"))
    }
}

/// Changes the caller's own password and ends their other sessions.
pub(crate) async fn set_password(
    State(app): State<App>,
    caller: Caller,
    address: ClientAddress,
    Json(request): Json<PasswordRequest>,
) -> ApiResult<StatusCode> {
    let (user, session) = caller.require_session()?;
    let current = request.current.unwrap_or_else(|| Password::new(""));
    let name = app.stores.users.get(user).await?.ok_or_else(|| ApiError::not_found("user"))?.name;
    // Whoever holds a token of somebody guesses no faster than at the door.
    limit_login(&app, &name, address).await?;
    let stored = app.stores.users.find_login(&name).await?.and_then(|login| login.password);
    if matches!(app.passwords.verify(current, stored).await?, Verdict::Wrong) {
        return Err(ApiError::field(ErrorCode::ValidationFailed, "current", "is not the password until now"));
    }
    let password = app.passwords.hash("new", request.new).await?;
    let context = caller.change("auth.set_password", user).context();
    if app.stores.users.set_password(&context, user, &password, Some(session)).await? {
        Ok(StatusCode::NO_CONTENT)
    } else {
        Err(ApiError::not_found("user"))
    }
}

/// Makes the identity of a new account.
pub(super) fn new_user_id() -> ApiResult<UserId> {
    // A UUID consists of characters that identities may have.
    Uuid::now_v7().to_string().parse().map_err(|_| ApiError::internal())
}

/// Says that a name belongs to somebody.
pub(super) fn name_taken(name: &UserName) -> ApiError {
    ApiError::field(ErrorCode::Duplicate, "name", format!("{name} is somebody's name already"))
}
