//! What a run does, as the scheduler sees it. The runners live where their means are: this crate
//! brings only the one for functions of the server itself.

use async_trait::async_trait;
use switchboard_model::json_text::JsonText;
use switchboard_model::run::LeasedRun;
use switchboard_model::span::Span;
use tokio_util::sync::CancellationToken;

/// Executes the runs of one kind of action.
#[async_trait]
pub trait ActionRunner: Send + Sync {
    /// Names the kind of action that it serves, as [`switchboard_model::task::Action::kind`] does.
    fn kind(&self) -> &'static str;

    /// Executes one attempt and returns its result.
    ///
    /// Once `stop` is cancelled it must return soon, or it is dropped where it stands. `Ok` always
    /// means that the work was done, also after `stop`; work that was cut short is an error.
    ///
    /// # Errors
    /// Says whether another attempt can help.
    async fn run(&self, run: &LeasedRun, stop: &CancellationToken) -> Result<Option<JsonText>, ActionError>;
}

/// Why an attempt failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ActionError {
    /// Another attempt would fail too.
    #[error("{0}")]
    Permanent(String),
    /// Another attempt may succeed.
    #[error("{error}")]
    Retryable {
        /// What went wrong.
        error: String,
        /// How long to wait at least; the back-off of the task when that is longer, or when this is absent.
        after: Option<Span>,
    },
}

impl ActionError {
    /// Makes an error after which another attempt follows by the back-off of the task.
    pub fn retryable(error: impl Into<String>) -> Self {
        Self::Retryable { error: error.into(), after: None }
    }
}
