//! The audit log: one entry for each administrative write, never edited.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Timestamp;
use crate::ids::AuditId;
use crate::json_text::JsonText;

/// One line of the audit log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AuditRecord {
    /// Its identity; later entries have greater ones.
    pub id: AuditId,
    /// When it was written.
    pub at: Timestamp,
    /// Who did it: `user:<id>`, `key:<id>` or `system:<part>`.
    pub actor: String,
    /// The request, as it appears in the logs.
    pub request_id: String,
    /// What was done, such as `task.create`.
    pub action: String,
    /// What it was done to.
    pub subject: String,
    /// The state before, if there was any.
    pub before: Option<JsonText>,
    /// The state after, if there is any.
    pub after: Option<JsonText>,
}

/// Which entries are asked for; what is absent does not restrict.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditFilter {
    /// Only those of this actor.
    pub actor: Option<String>,
    /// Only those of this action, or of all actions that start with it when it ends in a dot.
    pub action: Option<String>,
    /// Only those done to this.
    pub subject: Option<String>,
    /// Only those at this instant or later.
    pub from: Option<Timestamp>,
    /// Only those before this instant.
    pub to: Option<Timestamp>,
}

/// In which order a list of the audit log goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AuditOrder {
    /// For people.
    #[default]
    NewestFirst,
    /// For exports that go on where they stopped.
    OldestFirst,
}
