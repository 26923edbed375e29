//! Who calls and whether they may: API keys and their scopes, users and their roles. Knows no endpoint.

use std::sync::Arc;

use axum::extract::{FromRequestParts, Request, State};
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use switchboard_events::Hold;
use switchboard_model::Timestamp;
use switchboard_model::api_key::API_KEY_PREFIX;
use switchboard_model::auth_session::Credential;
use switchboard_model::identity::{Actor, UserId};
use switchboard_model::ids::{ApiKeyId, SessionId};
use switchboard_model::scope::Scope;
use switchboard_model::secret_text::SecretHash;
use switchboard_model::task::{Action, TaskSpec};
use switchboard_model::user::{User, UserRole};
use switchboard_model::wire::auth::Me;
use switchboard_model::wire::code::ErrorCode;
use switchboard_store_api::WriteContext;

use crate::auth::tokens;
use crate::error::ApiError;
use crate::middleware::RequestId;
use crate::routes::Access;
use crate::{ApiResult, App, AppState};

/// Names the replica that answered, to callers who operate the fleet.
const INSTANCE: HeaderName = HeaderName::from_static("x-switchboard-instance");

/// The longest text that is taken for a key, in bytes.
const KEY_BYTES: usize = 200;

/// Who somebody is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Principal {
    /// A program.
    ApiKey(ApiKeyId),
    /// A person; without a session by a token of another issuer.
    User { id: UserId, role: UserRole, session: Option<SessionId> },
}

/// Whoever made the request, and what they may do.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    principal: Principal,
    scopes: Arc<[Scope]>,
    request_id: Arc<str>,
    /// When the presented token expires; `None` for API keys.
    expires_at: Option<Timestamp>,
}

impl Caller {
    fn new(principal: Principal, scopes: Vec<Scope>, request_id: RequestId) -> Self {
        Self { principal, scopes: scopes.into(), request_id: request_id.0, expires_at: None }
    }

    fn user(id: UserId, role: UserRole, session: Option<SessionId>, request_id: RequestId) -> Self {
        Self::new(Principal::User { id, role, session }, role.scopes(), request_id)
    }

    /// Makes the caller of somebody who has just proved by a password who they are.
    pub(crate) fn signing_in(user: &User, session: SessionId, request_id: RequestId) -> Self {
        Self::user(user.id.clone(), user.role, Some(session), request_id)
    }

    /// Returns who the log and the database say it was.
    pub(crate) fn actor(&self) -> Actor {
        match &self.principal {
            Principal::ApiKey(id) => Actor::ApiKey(*id),
            Principal::User { id, .. } => Actor::User(id.clone()),
        }
    }

    /// Returns what tickets and sockets of the caller hang on.
    pub(crate) fn credential(&self) -> Credential {
        match &self.principal {
            Principal::ApiKey(id) => Credential::ApiKey(*id),
            Principal::User { session: Some(session), .. } => Credential::Session(*session),
            Principal::User { id, .. } => Credential::User(id.clone()),
        }
    }

    /// Returns what a socket hangs on that the caller opens without a ticket.
    pub(crate) fn hold(&self) -> Hold {
        Hold { credential: self.credential(), expires_at: self.expires_at }
    }

    /// Returns the user, unless a program calls.
    pub(crate) fn user_id(&self) -> Option<&UserId> {
        match &self.principal {
            Principal::ApiKey(_) => None,
            Principal::User { id, .. } => Some(id),
        }
    }

    /// Insists on a user.
    ///
    /// # Errors
    /// `forbidden` for API keys.
    pub(crate) fn require_user(&self) -> ApiResult<&UserId> {
        self.user_id().ok_or_else(|| ApiError::new(ErrorCode::Forbidden, "this is for users; an API key is none"))
    }

    /// Insists on a user with a sign-in session here.
    ///
    /// # Errors
    /// `forbidden` for API keys and for tokens of other issuers.
    pub(crate) fn require_session(&self) -> ApiResult<(&UserId, SessionId)> {
        match &self.principal {
            Principal::User { id, session: Some(session), .. } => Ok((id, *session)),
            _ => Err(ApiError::new(ErrorCode::Forbidden, "this is for users who signed in here")),
        }
    }

    /// Tells whether the credential grants a scope.
    pub(crate) fn allows(&self, scope: &Scope) -> bool {
        self.scopes.iter().any(|held| held.grants(scope))
    }

    /// Insists on a scope.
    ///
    /// # Errors
    /// `forbidden` names the scope that the credential lacks.
    pub(crate) fn require(&self, scope: &Scope) -> ApiResult<()> {
        if self.allows(scope) {
            Ok(())
        } else {
            Err(ApiError::new(ErrorCode::Forbidden, format!("the credential lacks the scope {scope}")))
        }
    }

    /// Insists on scopes that the caller wants to hand out: nobody gives what they do not have.
    ///
    /// # Errors
    /// As [`Caller::require`].
    pub(crate) fn require_all(&self, scopes: &[Scope]) -> ApiResult<()> {
        scopes.iter().try_for_each(|scope| self.require(scope))
    }

    /// Insists on executing the runs of some pool as an external worker.
    ///
    /// # Errors
    /// `forbidden` for whoever works on no pool at all.
    pub(crate) fn require_work(&self) -> ApiResult<()> {
        let works = self.scopes.iter().any(|held| matches!(held, Scope::Work(_)));
        if works { Ok(()) } else { self.require(&Scope::Work(None)) }
    }

    /// Insists on what a task will do in the name of the caller. A request that a task sends needs nothing beyond
    /// `tasks:write`, which its maker has: it carries no credential of the caller, and where it may go is decided by
    /// the guard of outbound requests, which operators of the server configure. A secret that it carries is another
    /// matter: the maker chooses who gets it.
    ///
    /// # Errors
    /// `forbidden` for an event that the caller could not publish, and for a secret that the caller may not use.
    pub(crate) fn require_action(&self, spec: &TaskSpec) -> ApiResult<()> {
        match &spec.action {
            Action::Event(action) => self.require(&Scope::publish_to(&action.to.room())),
            Action::Http(action) => action.secrets().try_for_each(|secret| self.require(&Scope::use_of(secret))),
            Action::Pull(_) | Action::System(_) => Ok(()),
        }
    }

    /// Makes the context of a write that is neither audited nor bound to an idempotency key.
    pub(crate) fn context(&self) -> WriteContext {
        WriteContext { actor: self.actor(), request_id: Arc::clone(&self.request_id), once: None, audit: None }
    }

    /// Says who the caller is.
    pub(crate) fn describe(&self) -> Me {
        let scopes = self.scopes.to_vec();
        match &self.principal {
            Principal::ApiKey(id) => Me { user_id: None, role: None, session_id: None, api_key_id: Some(*id), scopes },
            Principal::User { id, role, session } => {
                Me { user_id: Some(id.clone()), role: Some(*role), session_id: *session, api_key_id: None, scopes }
            }
        }
    }

    /// Tells whether the caller operates the fleet, rather than only using it.
    fn is_operator(&self) -> bool {
        !matches!(self.principal, Principal::User { role: UserRole::User, .. })
    }
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        parts.extensions.get::<Self>().cloned().ok_or_else(no_credential)
    }
}

/// Lets a request through whose credential is valid and has the scope of the route.
pub(crate) async fn authorise(
    State((app, access)): State<(App, &'static Access)>,
    request_id: RequestId,
    mut request: Request,
    next: Next,
) -> ApiResult<Response> {
    let caller = authenticate(&app, request.headers(), request_id).await?;
    if let Access::Scope(scope) = access {
        caller.require(scope)?;
    }
    let shown = caller.is_operator().then(|| HeaderValue::from_str(app.options.instance.as_str()).ok()).flatten();
    request.extensions_mut().insert(caller);
    let mut response = next.run(request).await;
    if let Some(instance) = shown {
        response.headers_mut().insert(INSTANCE, instance);
    }
    Ok(response)
}

/// Finds out who calls.
///
/// # Errors
/// `unauthorized`, the same whatever is wrong; `unavailable` when it cannot be found out now.
pub(crate) async fn authenticate(app: &AppState, headers: &HeaderMap, request_id: RequestId) -> ApiResult<Caller> {
    let bearer = presented_bearer(headers).ok_or_else(no_credential)?;
    let caller = if bearer.starts_with(API_KEY_PREFIX) {
        by_key(app, bearer, request_id).await?
    } else {
        by_token(app, bearer, request_id).await?
    };
    caller.ok_or_else(no_credential)
}

/// Finds the one bearer credential of a request, so that anything else costs no query.
pub(crate) fn presented_bearer(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (scheme, credential) = values.next()?.to_str().ok()?.split_once(' ')?;
    let credential = credential.trim();
    let is_one = values.next().is_none() && scheme.eq_ignore_ascii_case("bearer");
    (is_one && (1..=tokens::TOKEN_BYTES).contains(&credential.len())).then_some(credential)
}

async fn by_key(app: &AppState, key: &str, request_id: RequestId) -> ApiResult<Option<Caller>> {
    if key.len() > KEY_BYTES {
        return Ok(None);
    }
    let found = app.stores.api_keys.find_valid(SecretHash::of(key)).await?;
    Ok(found.map(|key| Caller::new(Principal::ApiKey(key.id), key.scopes, request_id)))
}

/// Verifies a token, ours or another issuer's. Ours hangs on its session, which is looked up every time: a
/// revocation acts on every replica at once.
pub(crate) async fn by_token(app: &AppState, token: &str, request_id: RequestId) -> ApiResult<Option<Caller>> {
    let now = app.now()?;
    let auth = &app.options.auth;
    let until = |caller: Caller, exp| Caller { expires_at: Timestamp::from_timestamp(exp, 0), ..caller };
    if let Some(claims) = tokens::verify(auth, token, now) {
        let found = app.stores.auth_sessions.find_valid(claims.sid).await?;
        let found = found.filter(|signed_in| signed_in.user.id == claims.sub);
        let caller = found.map(|found| Caller::signing_in(&found.user, found.session.id, request_id));
        return Ok(caller.map(|caller| until(caller, claims.exp)));
    }
    // One of ours that has expired, say, costs the other issuer nothing and is answered at once.
    let Some(external) = auth.external.as_ref().filter(|_| !tokens::is_ours(auth, token)) else { return Ok(None) };
    let Some((id, exp)) = external.verify(token, now).await? else { return Ok(None) };
    let role = match app.stores.users.get(&id).await? {
        Some(user) if user.is_disabled => return Ok(None),
        Some(user) => user.role,
        None => UserRole::User,
    };
    Ok(Some(until(Caller::user(id, role, None, request_id), exp)))
}

fn no_credential() -> ApiError {
    ApiError::unauthorized(
        "a valid API key or access token is needed: send the header Authorization: Bearer sbk_… or sign in",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(scopes: &[&str]) -> Caller {
        let scopes = scopes.iter().map(|scope| scope.parse().unwrap()).collect();
        Caller::new(Principal::ApiKey(ApiKeyId::new()), scopes, RequestId("r".into()))
    }

    #[test]
    fn only_one_bearer_credential_of_sane_length_is_looked_at() {
        let presented = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(AUTHORIZATION, value.parse().unwrap());
            }
            presented_bearer(&headers).map(str::to_owned)
        };
        assert_eq!(presented(&["Bearer sbk_abc"]).as_deref(), Some("sbk_abc"));
        assert_eq!(presented(&["bearer  a.b.c "]).as_deref(), Some("a.b.c"));
        for bad in [&["sbk_abc"][..], &["Basic sbk_abc"], &["Bearer"], &["Bearer "], &["Bearersbk_abc"], &[]] {
            assert_eq!(presented(bad), None, "{bad:?}");
        }
        assert_eq!(presented(&["Bearer a", "Bearer b"]), None);
        assert!(presented(&[&format!("Bearer {}", "x".repeat(4096))]).is_some());
        assert_eq!(presented(&[&format!("Bearer {}", "x".repeat(4097))]), None);
    }

    #[test]
    fn a_task_does_no_more_than_its_maker_may() {
        let spec = |action: &str| -> TaskSpec {
            serde_json::from_str(&format!(r#"{{"name":"t","action":{action}}}"#)).unwrap()
        };
        let to_room = spec(r#"{"event":{"to":{"room":"chat:1"},"event":"tick"}}"#);
        let to_user = spec(r#"{"event":{"to":{"user":"ann"},"event":"tick"}}"#);
        let system = spec(r#"{"system":{"function":"f"}}"#);
        let http = spec(r#"{"http":{"url":"https://a.example"}}"#);
        let may = |scopes: &[&str], spec| caller(scopes).require_action(spec).is_ok();
        assert!(may(&["publish:chat:"], &to_room) && may(&["admin"], &to_room));
        assert!(!may(&["tasks:write"], &to_room) && !may(&["publish:club:"], &to_room));
        assert!(may(&["publish:user:ann"], &to_user) && !may(&["publish:chat:"], &to_user));
        assert!(may(&["tasks:write"], &system) && may(&["tasks:write"], &http));
        let secret = spec(r#"{"http":{"url":"https://a.example","headers":{"x-key":{"secret":"crm.key"}}}}"#);
        assert!(may(&["secrets:use:crm."], &secret) && may(&["admin"], &secret));
        assert!(!may(&["tasks:write", "secrets:write", "secrets:use:erp"], &secret));
    }
}
