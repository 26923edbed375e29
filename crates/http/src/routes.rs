//! The table of all routes, and the routers made of it.

use axum::extract::DefaultBodyLimit;
use axum::http::Method;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::{MethodFilter, MethodRouter, on};
use switchboard_model::scope::Scope;
use switchboard_model::wire::limits::{BODY_BYTES, BULK_BODY_BYTES, STATE_BODY_BYTES};

use crate::access::authorise;
use crate::endpoints::{
    api_keys, audit, auth, bulk, calls, events, hooks, instances, leases, limits, listen, named_tasks, occurrences,
    once, outbox, probes, rooms, run_output, runs, sdk, sealing, secrets, sessions, settings, state, streams, tasks,
    test_clock, tickets, tokens, triggers, users, webhook_secrets, work,
};
use crate::limits::limit_requests;
use crate::middleware::{end_in_outage, guard, identify, observe};
use crate::openapi::{self, Sketch, asyncapi, describe};
use crate::unread::finish_body;
use crate::{Api, App, AppState, cors, request_line, ws};

/// Who may use a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// Everybody: probes, metrics, the OpenAPI document and the client for browsers.
    Anonymous,
    /// Everybody, for whoever has no other credential yet than what stands in the body.
    Login,
    /// Whoever presents a ticket, and programs with an access token.
    Ticket,
    /// Whoever signs with a secret of the task of the path.
    Signature,
    /// Whoever has a valid credential; the handler decides what it is good for.
    SignedIn,
    /// API keys with this scope, and users whose role has it.
    Scope(Scope),
    /// The same, and the user of the stream of the path; the handler decides.
    Stream(Scope),
    /// Whoever may publish to the room of the path; the handler decides.
    Publish,
    /// Whoever may be handed the token of the path; the handler decides.
    Token,
    /// Whoever may work on the pool of the path, or on the pool of the run of the path.
    Work,
}

/// One method of one path.
pub struct Route {
    /// The method.
    pub method: Method,
    /// The path, with parameters in braces.
    pub path: &'static str,
    /// Who may use it.
    pub access: Access,
    /// The handler, such as `tasks::create`.
    pub(crate) handler_name: &'static str,
    /// Tells what the signature of the handler says to clients.
    pub(crate) describe: fn(&mut Sketch<'_>),
    handler: fn() -> MethodRouter<App>,
}

impl Route {
    /// Returns the group of endpoints that the route belongs to.
    pub(crate) fn tag(&self) -> &'static str {
        self.handler_name.split("::").next().unwrap_or(self.handler_name)
    }

    /// Returns how large a body may be, in bytes.
    fn body_bytes(&self) -> usize {
        match self.tag() {
            "bulk" => BULK_BODY_BYTES,
            "state" => STATE_BODY_BYTES,
            _ => BODY_BYTES,
        }
    }
}

macro_rules! routes {
    ($($method:ident $path:literal $access:expr => $handler:path;)+) => {
        &[$(Route {
            method: Method::$method,
            path: $path,
            access: $access,
            handler_name: stringify!($handler),
            describe: |sketch| describe(sketch, $handler),
            handler: || on(MethodFilter::$method, $handler),
        }),+]
    };
}

/// Every route. The router serves what stands here and nothing else.
pub static ROUTES: &[Route] = routes! {
    GET    "/healthz/live"                 Access::Anonymous                => probes::live;
    GET    "/healthz/ready"                Access::Anonymous                => probes::ready;
    GET    "/metrics"                      Access::Anonymous                => probes::metrics;
    GET    "/openapi.json"                 Access::Anonymous                => openapi::serve;
    GET    "/sdk/switchboard.js"           Access::Anonymous                => sdk::module;
    GET    "/sdk/switchboard.d.ts"         Access::Anonymous                => sdk::types;
    GET    "/asyncapi.json"                Access::Anonymous                => asyncapi::serve;
    GET    "/ws"                           Access::Ticket                   => ws::upgrade;
    POST   "/api/v1/ws/ticket"             Access::SignedIn                 => tickets::mint;
    POST   "/api/v1/auth/register"         Access::Login                    => auth::register;
    POST   "/api/v1/auth/login"            Access::Login                    => auth::login;
    POST   "/api/v1/auth/refresh"          Access::Login                    => auth::refresh;
    POST   "/api/v1/auth/logout"           Access::SignedIn                 => auth::logout;
    GET    "/api/v1/auth/me"               Access::SignedIn                 => auth::me;
    GET    "/api/v1/auth/sessions"         Access::SignedIn                 => auth::sessions;
    DELETE "/api/v1/auth/sessions/{id}"    Access::SignedIn                 => auth::end_session;
    POST   "/api/v1/auth/password"         Access::SignedIn                 => auth::set_password;
    POST   "/api/v1/users"                 Access::Scope(Scope::Users)      => users::create;
    GET    "/api/v1/users"                 Access::Scope(Scope::Users)      => users::list;
    GET    "/api/v1/users/{id}"            Access::Scope(Scope::Users)      => users::get;
    PUT    "/api/v1/users/{id}"            Access::Scope(Scope::Users)      => users::update;
    DELETE "/api/v1/users/{id}"            Access::Scope(Scope::Users)      => users::delete;
    PUT    "/api/v1/users/{id}/password"   Access::Scope(Scope::Users)      => users::set_password;
    GET    "/api/v1/users/{id}/sessions"   Access::Scope(Scope::Users)      => users::sessions;
    DELETE "/api/v1/users/{id}/sessions"   Access::Scope(Scope::Users)      => users::end_sessions;
    POST   "/hooks/{*task}"                Access::Signature                => hooks::receive;
    POST   "/api/v1/tasks"                 Access::Scope(Scope::TasksWrite) => tasks::create;
    GET    "/api/v1/tasks"                 Access::Scope(Scope::TasksRead)  => tasks::list;
    POST   "/api/v1/tasks/preview"         Access::Scope(Scope::TasksRead)  => tasks::preview;
    POST   "/api/v1/tasks/bulk"            Access::Scope(Scope::TasksWrite) => bulk::create_tasks;
    GET    "/api/v1/tasks/by-name/{*name}" Access::Scope(Scope::TasksRead)  => named_tasks::get;
    PUT    "/api/v1/tasks/by-name/{*name}" Access::Scope(Scope::TasksWrite) => named_tasks::put;
    GET    "/api/v1/tasks/{id}"            Access::Scope(Scope::TasksRead)  => tasks::get;
    PUT    "/api/v1/tasks/{id}"            Access::Scope(Scope::TasksWrite) => tasks::update;
    DELETE "/api/v1/tasks/{id}"            Access::Scope(Scope::TasksWrite) => tasks::delete;
    POST   "/api/v1/tasks/{id}/trigger"    Access::Scope(Scope::TasksWrite) => triggers::trigger;
    POST   "/api/v1/tasks/{id}/pause"      Access::Scope(Scope::TasksWrite) => tasks::pause;
    POST   "/api/v1/tasks/{id}/resume"     Access::Scope(Scope::TasksWrite) => tasks::resume;
    GET    "/api/v1/tasks/{id}/skips"      Access::Scope(Scope::TasksRead)  => tasks::skips;
    GET    "/api/v1/tasks/{id}/occurrences" Access::Scope(Scope::TasksRead) => occurrences::list;
    POST   "/api/v1/tasks/{id}/webhook-secrets" Access::Scope(Scope::TasksWrite) => webhook_secrets::create;
    GET    "/api/v1/tasks/{id}/webhook-secrets" Access::Scope(Scope::TasksRead) => webhook_secrets::list;
    DELETE "/api/v1/tasks/{id}/webhook-secrets/{secret_id}" Access::Scope(Scope::TasksWrite) => webhook_secrets::delete;
    GET    "/api/v1/runs"                  Access::Scope(Scope::RunsRead)   => runs::list;
    POST   "/api/v1/runs/bulk"             Access::Scope(Scope::TasksWrite) => bulk::trigger_runs;
    POST   "/api/v1/runs/redrive"          Access::Scope(Scope::RunsWrite)  => runs::redrive;
    GET    "/api/v1/runs/{id}"             Access::Scope(Scope::RunsRead)   => runs::get;
    POST   "/api/v1/runs/{id}/cancel"      Access::Scope(Scope::RunsWrite)  => runs::cancel;
    POST   "/api/v1/runs/{id}/retry"       Access::Scope(Scope::RunsWrite)  => runs::retry;
    POST   "/api/v1/pools/{pool}/lease"    Access::Work                     => work::lease;
    POST   "/api/v1/runs/{id}/heartbeat"   Access::Work                     => work::heartbeat;
    POST   "/api/v1/runs/{id}/finish"      Access::Work                     => work::finish;
    POST   "/api/v1/runs/{id}/fail"        Access::Work                     => work::fail;
    POST   "/api/v1/runs/{id}/release"     Access::Work                     => work::release;
    POST   "/api/v1/runs/{id}/output"      Access::Work                     => run_output::append;
    GET    "/api/v1/runs/{id}/output"      Access::Scope(Scope::RunsRead)   => run_output::read;
    POST   "/api/v1/streams"               Access::Scope(Scope::StreamsWrite) => streams::create;
    GET    "/api/v1/streams"               Access::Scope(Scope::StreamsRead) => streams::list;
    GET    "/api/v1/streams/{id}"          Access::Stream(Scope::StreamsRead) => streams::get;
    POST   "/api/v1/streams/{id}/chunks"   Access::Scope(Scope::StreamsWrite) => streams::append;
    GET    "/api/v1/streams/{id}/chunks"   Access::Stream(Scope::StreamsRead) => streams::read;
    POST   "/api/v1/streams/{id}/close"    Access::Scope(Scope::StreamsWrite) => streams::close;
    POST   "/api/v1/streams/{id}/stop"     Access::Stream(Scope::StreamsWrite) => streams::stop;
    POST   "/api/v1/rooms"                 Access::Scope(Scope::RoomsWrite) => rooms::create;
    GET    "/api/v1/rooms"                 Access::Scope(Scope::RoomsRead)  => rooms::list;
    GET    "/api/v1/rooms/{name}"          Access::Scope(Scope::RoomsRead)  => rooms::get;
    DELETE "/api/v1/rooms/{name}"          Access::Scope(Scope::RoomsWrite) => rooms::delete;
    GET    "/api/v1/rooms/{name}/presence" Access::Scope(Scope::RoomsRead)  => rooms::presence;
    POST   "/api/v1/rooms/{name}/events"   Access::Publish                  => events::publish_to_room;
    GET    "/api/v1/rooms/{name}/events"   Access::Scope(Scope::RoomsRead)  => events::history;
    POST   "/api/v1/users/{id}/events"     Access::Publish                  => events::publish_to_user;
    GET    "/api/v1/events"                Access::SignedIn                 => listen::listen;
    POST   "/api/v1/users/{id}/calls"      Access::Scope(Scope::Calls)      => calls::call;
    GET    "/api/v1/calls/{id}"            Access::Scope(Scope::Calls)      => calls::get;
    GET    "/api/v1/sessions"              Access::Scope(Scope::Admin)      => sessions::list;
    DELETE "/api/v1/sessions/{id}"         Access::Scope(Scope::Admin)      => sessions::kick;
    POST   "/api/v1/limits/{key}/take"     Access::Scope(Scope::Coordination) => limits::take;
    GET    "/api/v1/leases"                Access::Scope(Scope::Coordination) => leases::list;
    GET    "/api/v1/leases/{key}"          Access::Scope(Scope::Coordination) => leases::get;
    POST   "/api/v1/leases/{key}/acquire"  Access::Scope(Scope::Coordination) => leases::acquire;
    POST   "/api/v1/leases/{key}/renew"    Access::Scope(Scope::Coordination) => leases::renew;
    POST   "/api/v1/leases/{key}/release"  Access::Scope(Scope::Coordination) => leases::release;
    POST   "/api/v1/leases/{key}/seize"    Access::Scope(Scope::Coordination) => leases::seize;
    GET    "/api/v1/once/{scope}/{key}"    Access::Scope(Scope::Coordination) => once::get;
    POST   "/api/v1/once/{scope}/{key}/claim" Access::Scope(Scope::Coordination) => once::claim;
    POST   "/api/v1/once/{scope}/{key}/complete" Access::Scope(Scope::Coordination) => once::complete;
    POST   "/api/v1/once/{scope}/{key}/abandon" Access::Scope(Scope::Coordination) => once::abandon;
    POST   "/api/v1/once/{scope}/{key}/take-over" Access::Scope(Scope::Coordination) => once::take_over;
    POST   "/api/v1/once/{scope}/{key}/consume" Access::Scope(Scope::Coordination) => once::consume;
    GET    "/api/v1/state/{ns}"            Access::Scope(Scope::Coordination) => state::list;
    GET    "/api/v1/state/{ns}/{key}"      Access::Scope(Scope::Coordination) => state::get;
    PUT    "/api/v1/state/{ns}/{key}"      Access::Scope(Scope::Coordination) => state::put;
    DELETE "/api/v1/state/{ns}/{key}"      Access::Scope(Scope::Coordination) => state::delete;
    GET    "/api/v1/secrets"               Access::Scope(Scope::SecretsRead) => secrets::list;
    GET    "/api/v1/secrets/{name}"        Access::Scope(Scope::SecretsRead) => secrets::get;
    PUT    "/api/v1/secrets/{name}"        Access::Scope(Scope::SecretsWrite) => secrets::put;
    DELETE "/api/v1/secrets/{name}"        Access::Scope(Scope::SecretsWrite) => secrets::delete;
    GET    "/api/v1/sealing"               Access::Scope(Scope::SecretsRead) => sealing::report;
    POST   "/api/v1/sealing/rewrap"        Access::Scope(Scope::Admin)      => sealing::rewrap_values;
    GET    "/api/v1/tokens"                Access::Scope(Scope::SecretsRead) => tokens::list;
    GET    "/api/v1/tokens/{name}"         Access::Scope(Scope::SecretsRead) => tokens::get;
    PUT    "/api/v1/tokens/{name}"         Access::Scope(Scope::SecretsWrite) => tokens::put;
    DELETE "/api/v1/tokens/{name}"         Access::Scope(Scope::SecretsWrite) => tokens::delete;
    POST   "/api/v1/tokens/{name}/access"  Access::Token                    => tokens::access;
    GET    "/api/v1/instances"             Access::Scope(Scope::Admin)      => instances::list;
    GET    "/api/v1/settings/fleet"        Access::Scope(Scope::Admin)      => settings::fleet;
    PUT    "/api/v1/settings/fleet"        Access::Scope(Scope::Admin)      => settings::put_fleet;
    POST   "/api/v1/api-keys"              Access::Scope(Scope::Admin)      => api_keys::create;
    GET    "/api/v1/api-keys"              Access::Scope(Scope::Admin)      => api_keys::list;
    DELETE "/api/v1/api-keys/{id}"         Access::Scope(Scope::Admin)      => api_keys::revoke;
    GET    "/api/v1/outbox/failed"         Access::Scope(Scope::Admin)      => outbox::failed;
    GET    "/api/v1/test-clock"            Access::Scope(Scope::Admin)      => test_clock::show;
    POST   "/api/v1/test-clock"            Access::Scope(Scope::Admin)      => test_clock::advance;
    GET    "/api/v1/audit"                 Access::Scope(Scope::Admin)      => audit::list;
    GET    "/api/v1/audit/export"          Access::Scope(Scope::Admin)      => audit::export;
};

/// Makes the router of everything.
pub fn router(api: Api) -> axum::Router {
    assemble(api, |_| true)
}

/// Makes the router of the probes and metrics alone, for a listener of their own.
pub fn metrics_router(api: Api) -> axum::Router {
    assemble(api, |route| route.tag() == "probes")
}

fn assemble(api: Api, is_included: impl Fn(&Route) -> bool) -> axum::Router {
    let timeout = api.options.request_timeout;
    let allowed_origins = api.options.allowed_origins.clone();
    let app = App::new(AppState::new(api));
    let mut router = axum::Router::new();
    for route in ROUTES.iter().filter(|route| is_included(route)) {
        let handler = (route.handler)().layer(DefaultBodyLimit::max(route.body_bytes()));
        let limited = from_fn_with_state(App::clone(&app), limit_requests);
        let handler = match &route.access {
            Access::Anonymous => handler,
            Access::Login | Access::Signature | Access::Ticket => handler.route_layer(limited),
            access @ (Access::SignedIn
            | Access::Scope(_)
            | Access::Stream(_)
            | Access::Publish
            | Access::Token
            | Access::Work) => {
                handler.route_layer(from_fn_with_state((App::clone(&app), access), authorise)).route_layer(limited)
            }
        };
        router = router.route(route.path, handler);
    }
    // From the inside out: what is identified last surrounds everything.
    router
        .layer(from_fn_with_state(App::clone(&app), end_in_outage))
        .layer(from_fn_with_state(timeout, guard))
        .layer(from_fn(request_line::check))
        .layer(cors::layer(allowed_origins))
        .layer(from_fn(cors::withhold_from_foreigners))
        .layer(from_fn(finish_body))
        .layer(from_fn(observe))
        .layer(from_fn(identify))
        .with_state(app)
}

/// Registers every metric of this crate at zero, so that dashboards see them from the start.
pub fn describe_metrics() {
    crate::middleware::describe_metrics(ROUTES);
    crate::auth::describe_metrics();
    auth::describe_metrics();
    crate::endpoints::hooks::describe_metrics();
    crate::limits::describe_metrics();
    crate::tokens::describe_metrics();
    ws::describe_metrics();
    crate::sse::describe_metrics();
    metrics::gauge!("switchboard_feed_age_seconds").set(0.0);
}
