//! The audit log over REST: read page by page, or exported as a whole.

use std::time::Duration;

use futures_util::{Stream, StreamExt as _};
use reqwest::{Method, RequestBuilder};
use switchboard_model::Timestamp;
use switchboard_model::audit::{AuditFilter, AuditRecord};
use switchboard_model::page::{Page, PageRequest};

use crate::client::{Client, fetch, open, request_error};
use crate::error::ClientError;
use crate::lines::lines;

/// How long a whole export may take; a server that is silent in the middle of it is given up much earlier.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

impl Client {
    /// Returns a page of the entries that `filter` selects, newest first.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn list_audit(&self, filter: &AuditFilter, page: PageRequest) -> Result<Page<AuditRecord>, ClientError> {
        fetch(filtered(self.api_page(&["audit"], &page), filter)).await
    }

    /// Returns all entries that `filter` selects, oldest first, each as one line of JSON. They arrive as they are
    /// asked for. An export that the server broke off ends with an error: what came before is not all there is.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn export_audit(
        &self,
        filter: &AuditFilter,
    ) -> Result<impl Stream<Item = Result<String, ClientError>> + Send + use<>, ClientError> {
        let request = filtered(self.api(Method::GET, &["audit", "export"]), filter).timeout(EXPORT_TIMEOUT);
        let chunks = open(request).await?.bytes_stream();
        Ok(lines(chunks.map(|chunk| chunk.map_err(request_error))))
    }
}

fn filtered(request: RequestBuilder, filter: &AuditFilter) -> RequestBuilder {
    let AuditFilter { actor, action, subject, from, to } = filter;
    let instant = |at: &Option<Timestamp>| at.map(|at| at.to_rfc3339());
    request.query(&[
        ("actor", actor.clone()),
        ("action", action.clone()),
        ("subject", subject.clone()),
        ("from", instant(from)),
        ("to", instant(to)),
    ])
}
