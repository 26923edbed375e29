//! The occurrences of a task: what became of each, and which are to come.

use axum::Json as Body;
use axum::extract::State;
use schemars::JsonSchema;
use serde::Deserialize;
use switchboard_model::Timestamp;
use switchboard_model::ids::TaskId;
use switchboard_model::occurrence::{KnownOccurrences, Occurrence, OccurrenceWindow, occurrences};
use switchboard_model::page::{MAX_PAGE, Page, PageRequest};
use switchboard_model::wire::code::ErrorCode;
use switchboard_store_api::OccurrenceRange;

use super::tasks::existing;
use crate::error::ApiError;
use crate::extract::{Path, Query, within};
use crate::{ApiResult, App};

/// Which occurrences are asked for.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct OccurrenceQuery {
    /// The first instant; everything that is known when absent.
    from: Option<Timestamp>,
    /// The last instant; now when absent. One in the future asks for occurrences to come.
    to: Option<Timestamp>,
    /// Where the previous page ended: its `next_cursor`.
    cursor: Option<Timestamp>,
    /// The most occurrences to return; those of one instant are never divided.
    #[schemars(range(min = 1, max = MAX_PAGE), extend("default" = PageRequest::default().limit))]
    limit: Option<u32>,
}

/// Lists the occurrences of a task, newest first: the run of each, or why there is none.
pub(crate) async fn list(
    State(app): State<App>,
    Path(id): Path<TaskId>,
    Query(query): Query<OccurrenceQuery>,
) -> ApiResult<Body<Page<Occurrence>>> {
    let limit = within(query.limit.unwrap_or(PageRequest::default().limit), MAX_PAGE)?;
    let now = app.stores.schedule_clock.set_time().map_or_else(|| app.now(), Ok)?;
    // The page after the first one goes on below the cursor.
    let to = query.cursor.or(query.to).unwrap_or(now);
    let from = query.from.unwrap_or(Timestamp::UNIX_EPOCH);
    if from > to {
        return Err(ApiError::field(ErrorCode::ValidationFailed, "from", "must not be after the end"));
    }
    let window = OccurrenceWindow { from, to, limit };
    let range = OccurrenceRange { from, to, limit };
    // The task is read first: what fires after that is found among the runs.
    let task = existing(&app, id).await?;
    let runs = app.stores.runs.of_occurrences(id, &range).await?;
    let skips = app.stores.tasks.skips_between(id, &range).await?;
    let list = occurrences(&window, &KnownOccurrences { task: &task, runs: &runs, skips: &skips, now });
    Ok(Body(Page { items: list.items, next_cursor: list.next_to.map(|to| to.format("%FT%T%.6fZ").to_string()) }))
}
