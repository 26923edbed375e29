//! What a run does, as the scheduler sees it. The runners live where their means are: this crate
//! brings only the one for functions of the server itself.

use std::sync::Arc;

use async_trait::async_trait;
use switchboard_model::json_text::JsonText;
use switchboard_model::run::LeasedRun;
use switchboard_model::span::Span;
use switchboard_model::stream::StreamEnd;
use tokio_util::sync::CancellationToken;

/// Where the output of runs goes.
pub trait OutputSink: Send + Sync {
    /// Begins the output of an attempt. Nothing is made of it before something is written.
    fn begin(&self, run: &LeasedRun) -> Arc<dyn RunOutput>;
}

/// What one attempt writes while it is under way. One that is dropped without an end was lost.
#[async_trait]
pub trait RunOutput: Send + Sync {
    /// Adds text. What cannot be kept is dropped: a run does not fail because of what it says.
    async fn write(&self, text: &str);

    /// Ends what was written, if anything.
    async fn end(&self, end: StreamEnd);
}

/// Keeps nothing.
pub(crate) struct NoOutput;

impl OutputSink for NoOutput {
    fn begin(&self, _: &LeasedRun) -> Arc<dyn RunOutput> {
        Arc::new(Self)
    }
}

#[async_trait]
impl RunOutput for NoOutput {
    async fn write(&self, _: &str) {}

    async fn end(&self, _: StreamEnd) {}
}

/// Executes the runs of one kind of action.
#[async_trait]
pub trait ActionRunner: Send + Sync {
    /// Names the kind of action that it serves, as [`switchboard_model::task::Action::kind`] does.
    fn kind(&self) -> &'static str;

    /// Executes one attempt and returns its result; what it says meanwhile goes to `output`.
    ///
    /// Once `stop` is cancelled it must return soon, or it is dropped where it stands. `Ok` always
    /// means that the work was done, also after `stop`; work that was cut short is an error.
    ///
    /// # Errors
    /// Says whether another attempt can help.
    async fn run(
        &self,
        run: &LeasedRun,
        stop: &CancellationToken,
        output: &Arc<dyn RunOutput>,
    ) -> Result<Option<JsonText>, ActionError>;
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
