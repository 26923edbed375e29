//! The audit log: read page by page, or exported as a whole.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use axum::{BoxError, Json as Answer};
use bytes::Bytes;
use futures_util::stream::try_unfold;
use schemars::JsonSchema;
use serde::Deserialize;
use switchboard_events::error_chain;
use switchboard_model::Timestamp;
use switchboard_model::audit::{AuditFilter, AuditOrder, AuditRecord};
use switchboard_model::page::{MAX_PAGE, Page, PageRequest};
use switchboard_store_api::{AuditStore, StoreResult};

use crate::extract::{Query, page};
use crate::openapi::{self, Sketch};
use crate::{ApiResult, App};

/// How many entries of an export are in memory at a time.
const EXPORT_PAGE: u32 = 100;

/// Which entries are asked for.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AuditQuery {
    /// Only entries of this actor, such as `user:<id>` or `key:<id>`.
    actor: Option<String>,
    /// Only entries of this action, or of all that start with it when it ends in a dot.
    action: Option<String>,
    /// Only entries about this.
    subject: Option<String>,
    /// Only entries at this instant or later.
    from: Option<Timestamp>,
    /// Only entries before this instant.
    to: Option<Timestamp>,
    /// Where the previous page ended: its `next_cursor`.
    cursor: Option<String>,
    /// The most rows to return.
    #[schemars(range(min = 1, max = MAX_PAGE), extend("default" = PageRequest::default().limit))]
    limit: Option<u32>,
}

/// Which entries are exported.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExportQuery {
    /// Only entries of this actor, such as `user:<id>` or `key:<id>`.
    actor: Option<String>,
    /// Only entries of this action, or of all that start with it when it ends in a dot.
    action: Option<String>,
    /// Only entries about this.
    subject: Option<String>,
    /// Only entries at this instant or later.
    from: Option<Timestamp>,
    /// Only entries before this instant.
    to: Option<Timestamp>,
}

/// Lists entries, newest first.
pub(crate) async fn list(
    State(app): State<App>,
    Query(query): Query<AuditQuery>,
) -> ApiResult<Answer<Page<AuditRecord>>> {
    let AuditQuery { actor, action, subject, from, to, cursor, limit } = query;
    let filter = AuditFilter { actor, action, subject, from, to };
    Ok(Answer(app.stores.audit.list(&filter, AuditOrder::NewestFirst, &page(cursor, limit)?).await?))
}

/// Streams all entries as one JSON text a line, oldest first.
///
/// No more than a page is in memory. When the database fails in the middle the connection is cut before the end of
/// the body, so that what came is not taken for all there is.
pub(crate) async fn export(State(app): State<App>, Query(query): Query<ExportQuery>) -> ApiResult<Export> {
    let ExportQuery { actor, action, subject, from, to } = query;
    let filter = AuditFilter { actor, action, subject, from, to };
    let audit = Arc::clone(&app.stores.audit);
    // The first page is read before the answer begins, so that its failure still has a status.
    let first = read(&*audit, &filter, None).await?;
    let chunks = try_unfold(Step::Write(first), move |step| {
        let (audit, filter) = (Arc::clone(&audit), filter.clone());
        async move {
            let page = match step {
                Step::Write(page) => page,
                Step::Read(cursor) => read(&*audit, &filter, Some(cursor)).await.inspect_err(|error| {
                    tracing::error!(error = %error_chain(error), "an export of the audit log was cut");
                })?,
                Step::End => return Ok(None),
            };
            let next = page.next_cursor.map_or(Step::End, Step::Read);
            Ok::<_, BoxError>(Some((lines(&page.items)?, next)))
        }
    });
    Ok(Export(Body::from_stream(chunks)))
}

/// One entry a line.
pub(crate) struct Export(Body);

/// The media type of JSON texts in lines.
const JSON_LINES: &str = "application/x-ndjson";

impl IntoResponse for Export {
    fn into_response(self) -> Response {
        let name = "attachment; filename=\"switchboard-audit.ndjson\"";
        ([(CONTENT_TYPE, JSON_LINES), (CONTENT_DISPOSITION, name)], self.0).into_response()
    }
}

impl openapi::Answer for Export {
    fn describe(sketch: &mut Sketch<'_>) {
        sketch.gives_text(JSON_LINES);
    }
}

/// What an export does next.
enum Step {
    Write(Page<AuditRecord>),
    Read(String),
    End,
}

async fn read(audit: &dyn AuditStore, filter: &AuditFilter, after: Option<String>) -> StoreResult<Page<AuditRecord>> {
    audit.list(filter, AuditOrder::OldestFirst, &PageRequest { after, limit: EXPORT_PAGE }).await
}

fn lines(records: &[AuditRecord]) -> Result<Bytes, serde_json::Error> {
    let mut text = Vec::new();
    for record in records {
        serde_json::to_writer(&mut text, record)?;
        text.push(b'\n');
    }
    Ok(text.into())
}
