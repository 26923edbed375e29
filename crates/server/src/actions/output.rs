//! What runs write, kept as a stream that any replica serves.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use switchboard_events::{StreamWriter, Streams, error_chain};
use switchboard_model::ids::InstanceId;
use switchboard_model::redact::Redactor;
use switchboard_model::run::LeasedRun;
use switchboard_model::stream::{NewStream, StreamEnd};
use switchboard_scheduler::{OutputSink, RunOutput};
use tokio::sync::Mutex;
use tokio::time::timeout;

/// How long a run that ends waits until the end of its output is stored.
const END_PATIENCE: Duration = Duration::from_secs(2);

/// Keeps the output of runs as streams.
pub(crate) struct StreamedOutput {
    pub(crate) streams: Arc<Streams>,
    pub(crate) instance: InstanceId,
}

impl OutputSink for StreamedOutput {
    fn begin(&self, run: &LeasedRun) -> Arc<dyn RunOutput> {
        Arc::new(Attempt {
            streams: Arc::clone(&self.streams),
            output: NewStream::output_of(run.id, run.fence, &self.instance),
            redactor: Redactor::of(&run.action),
            writer: Mutex::new(Writer::Unused),
        })
    }
}

/// The output of one attempt.
struct Attempt {
    streams: Arc<Streams>,
    output: NewStream,
    redactor: Redactor,
    writer: Mutex<Writer>,
}

enum Writer {
    /// Nothing was written yet.
    Unused,
    Open(StreamWriter),
    /// Nothing more can be written.
    Closed,
}

#[async_trait]
impl RunOutput for Attempt {
    async fn write(&self, text: &str) {
        let text = self.redactor.text(text);
        let mut writer = self.writer.lock().await;
        if matches!(*writer, Writer::Unused) {
            *writer = self.streams.open(&self.output).await.map_or_else(
                |error| {
                    tracing::warn!(run = ?self.output.run_id, error = %error_chain(&error), "the output of a run is lost");
                    Writer::Closed
                },
                Writer::Open,
            );
        }
        if let Writer::Open(open) = &*writer
            && let Err(error) = open.write(text.as_bytes()).await
        {
            tracing::warn!(run = ?self.output.run_id, %error, "the output of a run goes no further");
            *writer = Writer::Closed;
        }
    }

    async fn end(&self, end: StreamEnd) {
        let writer = std::mem::replace(&mut *self.writer.lock().await, Writer::Closed);
        if let Writer::Open(open) = writer
            && let Ok(Err(error)) = timeout(END_PATIENCE, open.end(end)).await
        {
            tracing::warn!(run = ?self.output.run_id, %error, "the output of a run has another end");
        }
    }
}
