//! The functions that `system` tasks can call.

use std::sync::Arc;

use switchboard_http::{RewrapError, Sealer, rewrap};
use switchboard_model::json_text::JsonText;
#[cfg(debug_assertions)]
use switchboard_scheduler::RunOutput;
use switchboard_scheduler::{ActionError, HistoryAges, REWRAP_SECRETS, SystemRegistry};
use switchboard_store_api::Stores;
use tokio_util::sync::CancellationToken;

/// About how many values are encrypted anew between two looks at whether to stop.
const STRETCH: u64 = 1_000;

/// Lists the functions that `system` tasks can call.
pub(crate) fn system_functions(stores: &Stores, sealer: &Arc<Sealer>, ages: HistoryAges) -> SystemRegistry {
    let (values, sealer) = (stores.clone(), Arc::clone(sealer));
    let registry = SystemRegistry::standard(stores, ages)
        .with(REWRAP_SECRETS, move |stop| rewrap_secrets(values.clone(), Arc::clone(&sealer), stop));
    #[cfg(debug_assertions)]
    let registry = registry
        .with("test.wait", |stop| until(stop, tokio::time::sleep(std::time::Duration::from_millis(1500))))
        .with("test.gate", |stop| until(stop, gate()))
        .with("test.kill", kill)
        .with_output("test.write", |_, output| write(output, Some(20)))
        .with_output("test.write_on", |_, output| write(output, None))
        .with_output("test.write_and_fail", write_and_fail);
    registry
}

/// Brings stored values under the current key, if it is the one by which this replica encrypts. Keys are not retired: a
/// replica that has not got the new configuration yet may have to start again.
async fn rewrap_secrets(stores: Stores, sealer: Arc<Sealer>, stop: CancellationToken) -> Result<JsonText, ActionError> {
    let mut rewrapped = 0;
    let report = loop {
        match rewrap(&stores, &sealer, STRETCH).await {
            Err(error @ RewrapError::NotCurrent { .. }) => {
                return encode(&serde_json::json!({"left_to_others": error.to_string()}));
            }
            Err(error) => return Err(ActionError::retryable(error.to_string())),
            Ok(report) => {
                rewrapped += report.rewrapped;
                if report.rewrapped == 0 || report.left == 0 {
                    break report;
                }
            }
        }
        if stop.is_cancelled() {
            return Err(ActionError::retryable("stopped before the end; the next run goes on"));
        }
    };
    encode(&serde_json::json!({"rewrapped": rewrapped, "left": report.left, "unreadable": report.unreadable}))
}

fn encode(result: &serde_json::Value) -> Result<JsonText, ActionError> {
    JsonText::encode(result).map_err(|error| ActionError::Permanent(error.to_string()))
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

/// Writes a line every now and then, with characters of several bytes, for tests of the output; not in release builds.
#[cfg(debug_assertions)]
async fn write(output: Arc<dyn RunOutput>, lines: Option<u32>) -> Result<JsonText, ActionError> {
    let mut line = 0_u32;
    while lines.is_none_or(|lines| line < lines) {
        line += 1;
        output.write(&format!("line {line} 🦀\n")).await;
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    Ok(JsonText::null())
}

/// Writes a line and fails; not in release builds.
#[cfg(debug_assertions)]
async fn write_and_fail(_stop: CancellationToken, output: Arc<dyn RunOutput>) -> Result<JsonText, ActionError> {
    output.write("trying\n").await;
    Err(ActionError::retryable("as asked"))
}
