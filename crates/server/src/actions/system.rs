//! The functions that `system` tasks can call.

#[cfg(debug_assertions)]
use switchboard_model::json_text::JsonText;
#[cfg(debug_assertions)]
use switchboard_scheduler::ActionError;
use switchboard_scheduler::{HistoryAges, SystemRegistry};
use switchboard_store_api::Stores;
#[cfg(debug_assertions)]
use tokio_util::sync::CancellationToken;

/// Lists the functions that `system` tasks can call.
pub(crate) fn system_functions(stores: &Stores, ages: HistoryAges) -> SystemRegistry {
    let registry = SystemRegistry::standard(stores, ages);
    #[cfg(debug_assertions)]
    let registry = registry
        .with("test.wait", |stop| until(stop, tokio::time::sleep(std::time::Duration::from_millis(1500))))
        .with("test.gate", |stop| until(stop, gate()))
        .with("test.kill", kill);
    registry
}

/// Takes its time, for tests that need a run to be under way; not in release builds.
#[cfg(debug_assertions)]
async fn until(stop: CancellationToken, end: impl Future<Output = ()>) -> Result<JsonText, ActionError> {
    match stop.run_until_cancelled(end).await {
        Some(()) => Ok(JsonText::null()),
        None => Err(ActionError::Permanent("stopped".to_owned())),
    }
}

/// Waits for a file `gate` in the working folder: the test decides when its runs end, however slow the machine is; not
/// in release builds.
#[cfg(debug_assertions)]
async fn gate() {
    while !std::path::Path::new("gate").exists() {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}

/// Ends the process as a crash does, for tests of runs that take their replica along; not in release builds.
#[cfg(debug_assertions)]
async fn kill(_stop: CancellationToken) -> Result<JsonText, ActionError> {
    std::process::abort()
}
