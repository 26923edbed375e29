//! Where the process is in its life. Knows nothing of what starting and draining mean elsewhere.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio_util::sync::CancellationToken;

/// Where the process is in its life: starting, ready, draining. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Lifecycle(Arc<Phases>);

#[derive(Debug, Default)]
struct Phases {
    is_started: AtomicBool,
    draining: CancellationToken,
}

impl Lifecycle {
    /// Makes the life of a process that is starting.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Notes that everything is wired and traffic may come.
    pub fn set_ready(&self) {
        self.0.is_started.store(true, Ordering::SeqCst);
    }

    /// Notes that the process is being stopped: it turns unready and refuses new sockets. There is no way back.
    pub fn start_draining(&self) {
        self.0.draining.cancel();
    }

    /// Tells whether the process has started.
    #[must_use]
    pub fn is_started(&self) -> bool {
        self.0.is_started.load(Ordering::SeqCst)
    }

    /// Tells whether the process is being stopped.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.0.draining.is_cancelled()
    }

    /// Waits until the process is being stopped.
    pub(crate) async fn draining(&self) {
        self.0.draining.cancelled().await;
    }
}
