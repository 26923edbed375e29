//! What the audit log says of an administrative change. Knows no endpoint.

use std::fmt::Display;

use serde::Serialize;
use switchboard_model::json_text::JsonText;
use switchboard_store_api::{AuditEntry, WriteContext};

use crate::ApiResult;
use crate::access::Caller;
use crate::error::ApiError;

/// An administrative change, on its way to becoming the context of its write.
pub(crate) struct Change {
    context: WriteContext,
    entry: AuditEntry,
}

impl Caller {
    /// Describes an administrative change by the caller, such as `task.create`, and what it is done to.
    pub(crate) fn change(&self, action: &'static str, subject: impl Display) -> Change {
        let entry = AuditEntry { action, subject: subject.to_string(), before: None, after: None };
        Change { context: self.context(), entry }
    }
}

impl Change {
    /// Notes the state before.
    ///
    /// # Errors
    /// Fails for what has no JSON form; no state of ours is such.
    pub(crate) fn before(mut self, state: &impl Serialize) -> ApiResult<Self> {
        self.entry.before = Some(encode(state)?);
        Ok(self)
    }

    /// Notes the state after.
    ///
    /// # Errors
    /// As [`Change::before`].
    pub(crate) fn after(mut self, state: &impl Serialize) -> ApiResult<Self> {
        self.entry.after = Some(encode(state)?);
        Ok(self)
    }

    /// Finishes the description.
    pub(crate) fn context(self) -> WriteContext {
        WriteContext { audit: Some(self.entry), ..self.context }
    }
}

fn encode(state: &impl Serialize) -> ApiResult<JsonText> {
    JsonText::encode(state).map_err(|error| {
        tracing::error!(%error, "an audit entry has no JSON form");
        ApiError::internal()
    })
}
