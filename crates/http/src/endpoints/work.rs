//! External workers: they lease runs of a pool, say that they go on, and report how it ended.
//!
//! A run is there only for whoever may work on its pool. Every report carries the fence of its lease; an old one is
//! `fenced` and changes nothing.

use axum::Json as Body;
use axum::extract::{FromRequestParts, State};
use axum::http::request::Parts;
use sha2::{Digest as _, Sha256};
use switchboard_model::Timestamp;
use switchboard_model::identity::{PoolName, WorkerName};
use switchboard_model::ids::{Fence, InstanceId, RunId};
use switchboard_model::redact::Redactor;
use switchboard_model::run::{Ending, Finish, Run};
use switchboard_model::scope::Scope;
use switchboard_model::span::Span;
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::work::{
    FailKind, FailRequest, FinishRequest, HeartbeatRequest, HeartbeatResponse, LEASE_RUNS, LONGEST_LEASE,
    PoolLeaseRequest, PoolLeaseResponse, PulledRun, ReleaseRequest, ReportResponse, SHORTEST_LEASE,
};
use switchboard_scheduler::PullRequest;
use switchboard_store_api::{FinishOutcome, RenewOutcome, Renewal, WorkerKind};
use uuid::Uuid;

use super::run_output;
use super::runs::existing;
use crate::access::Caller;
use crate::error::ApiError;
use crate::extract::{Json, Path};
use crate::openapi::{Part, Sketch};
use crate::wait::wait_ends;
use crate::{ApiResult, App, AppState};

/// A pool on which the caller may work.
#[derive(Debug)]
pub(crate) struct WorkedPool(PoolName);

impl FromRequestParts<App> for WorkedPool {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let caller = Caller::from_request_parts(parts, app).await?;
        let Path(pool) = Path::from_request_parts(parts, app).await?;
        caller.require(&Scope::work_on(&pool))?;
        Ok(Self(pool))
    }
}

impl Part for WorkedPool {
    fn describe(sketch: &mut Sketch<'_>) {
        Path::<PoolName>::describe(sketch);
    }
}

/// A run of a pool on which the caller may work.
#[derive(Debug)]
pub(crate) struct WorkedRun(pub(super) Run);

impl FromRequestParts<App> for WorkedRun {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let caller = Caller::from_request_parts(parts, app).await?;
        caller.require_work()?;
        let Path(id) = Path::from_request_parts(parts, app).await?;
        let run = existing(app, id).await?;
        // What a replica executes is not for external workers, whatever its pool.
        let is_theirs = run.leased_by.as_ref().is_some_and(InstanceId::is_external);
        let is_allowed = is_theirs && caller.allows(&Scope::work_on(&run.pool));
        if is_allowed { Ok(Self(run)) } else { Err(ApiError::not_found("run")) }
    }
}

impl Part for WorkedRun {
    fn describe(sketch: &mut Sketch<'_>) {
        Path::<RunId>::describe(sketch);
    }
}

/// Leases runs of a pool, or waits for some.
///
/// When the answer is lost, the same request again gives the same runs while their leases hold; otherwise they expire
/// and are handed to somebody else.
pub(crate) async fn lease(
    State(app): State<App>,
    WorkedPool(pool): WorkedPool,
    Json(request): Json<PoolLeaseRequest>,
) -> ApiResult<Body<PoolLeaseResponse>> {
    let PoolLeaseRequest { request_id, worker, max, lease, wait } = request;
    if !(1..=LEASE_RUNS).contains(&max) {
        let detail = format!("must be between 1 and {LEASE_RUNS}");
        return Err(ApiError::field(ErrorCode::ValidationFailed, "max", detail));
    }
    let lease = length(&app, lease)?;
    let until = wait_ends(&app, wait.unwrap_or_default())?;
    let request = identity(&pool, &worker, request_id);
    let request = PullRequest { worker, pool, limit: max, lease, request };
    let runs = app.pull.lease(request, until, app.lifecycle.draining()).await?;
    Ok(Body(PoolLeaseResponse { runs: runs.into_iter().map(PulledRun::from).collect() }))
}

/// Binds the identity of a request to its pool and worker: nobody gets the runs of others by guessing it.
fn identity(pool: &PoolName, worker: &WorkerName, request_id: Uuid) -> Uuid {
    let mut hash = Sha256::new();
    // The separators keep the parts apart: names contain no line feed.
    for part in [pool.as_str().as_bytes(), b"\n", worker.as_str().as_bytes(), b"\n", request_id.as_bytes()] {
        hash.update(part);
    }
    let mut half = [0; 16];
    half.copy_from_slice(&hash.finalize()[..16]);
    Uuid::from_bytes(half)
}

/// Prolongs the lease of a run, though not beyond the end of its time.
pub(crate) async fn heartbeat(
    State(app): State<App>,
    WorkedRun(run): WorkedRun,
    Json(request): Json<HeartbeatRequest>,
) -> ApiResult<Body<HeartbeatResponse>> {
    let asked = length(&app, request.lease)?;
    let now = app.now()?;
    if run.fence != request.fence {
        return Err(fenced());
    }
    let lease = run.deadline_at.map_or(asked, |deadline| asked.min(left(now, deadline)));
    if lease < Span::from_millis(1) {
        return Err(ApiError::new(ErrorCode::Fenced, "the attempt has timed out; stop, the run is taken away"));
    }
    let renewals = [Renewal { id: run.id, fence: request.fence }];
    let outcomes = app.stores.runs.renew(WorkerKind::External, &renewals, lease).await?;
    let cancel_requested = match outcomes.first() {
        Some(RenewOutcome::Renewed) => false,
        Some(RenewOutcome::CancelRequested) => true,
        Some(RenewOutcome::Lost) | None => return Err(fenced()),
    };
    run_output::keep(&app, &run).await?;
    Ok(Body(HeartbeatResponse { lease_until: now + lease.to_delta(), cancel_requested }))
}

/// Reports that a run has succeeded.
pub(crate) async fn finish(
    State(app): State<App>,
    WorkedRun(run): WorkedRun,
    Json(request): Json<FinishRequest>,
) -> ApiResult<Body<ReportResponse>> {
    report(&app, &run, request.fence, Ending::Succeeded(request.result)).await
}

/// Reports that an attempt has failed; another one follows after a while if that may help and one is left.
pub(crate) async fn fail(
    State(app): State<App>,
    WorkedRun(run): WorkedRun,
    Json(request): Json<FailRequest>,
) -> ApiResult<Body<ReportResponse>> {
    let error = request.error;
    let ending = match (request.kind, request.delay) {
        (FailKind::Permanent, None) => Ending::Failed(error),
        (FailKind::Permanent, Some(_)) => {
            let detail = "has no meaning for a permanent failure; leave it out";
            return Err(ApiError::field(ErrorCode::ValidationFailed, "delay", detail));
        }
        (FailKind::Retry, Some(delay)) => Ending::Retry { error, delay },
        (FailKind::Retry, None) => Ending::Retry { error, delay: usual_delay(&app, &run).await? },
    };
    report(&app, &run, request.fence, ending).await
}

/// Gives a run back; the attempt does not count. One that is to be cancelled is cancelled by that.
pub(crate) async fn release(
    State(app): State<App>,
    WorkedRun(run): WorkedRun,
    Json(request): Json<ReleaseRequest>,
) -> ApiResult<Body<ReportResponse>> {
    report(&app, &run, request.fence, Ending::Released).await
}

async fn report(app: &AppState, run: &Run, fence: Fence, ending: Ending) -> ApiResult<Body<ReportResponse>> {
    // What a worker brings back is stored and shown, as what a replica brings back is.
    let ending = ending.redacted(&redactor(run));
    if run.fence == fence {
        // Before the run ends: nobody is to find it ended and its output open.
        run_output::end(app, run, &ending).await?;
    }
    match app.pull.finish(&run.pool, Finish { id: run.id, fence, ending }).await? {
        FinishOutcome::Accepted(state) | FinishOutcome::Repeated(state) => Ok(Body(ReportResponse { state })),
        FinishOutcome::Fenced => Err(fenced()),
    }
}

/// Knows the secrets of a run that an external worker executes: its action has none, its input may.
pub(super) fn redactor(run: &Run) -> Redactor {
    Redactor::of_input(run.input.as_ref())
}

/// Returns how long the task lets a failed attempt wait; as long as usual when the task was deleted.
async fn usual_delay(app: &AppState, run: &Run) -> ApiResult<Span> {
    let task = app.stores.tasks.get(run.task_id).await?;
    let backoff = task.map(|task| task.spec.backoff).unwrap_or_default();
    Ok(backoff.delay(run.attempt, rand::random()))
}

/// Checks how long a lease is to hold.
fn length(app: &AppState, lease: Option<Span>) -> ApiResult<Span> {
    let Some(lease) = lease else { return Ok(app.pull.default_lease()) };
    if (SHORTEST_LEASE..=LONGEST_LEASE).contains(&lease) {
        Ok(lease)
    } else {
        let detail = format!("must be between {SHORTEST_LEASE} and {LONGEST_LEASE}");
        Err(ApiError::field(ErrorCode::ValidationFailed, "lease", detail))
    }
}

fn left(now: Timestamp, deadline: Timestamp) -> Span {
    Span::from_millis(u64::try_from((deadline - now).num_milliseconds()).unwrap_or(0))
}

pub(super) fn fenced() -> ApiError {
    ApiError::new(ErrorCode::Fenced, "the lease was lost; stop, somebody else may execute the run now")
}
