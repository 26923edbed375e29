//! What is worked out before a write, so that no transaction waits for it. Knows no driver.

use switchboard_model::Timestamp;
use switchboard_model::fire::{Armed, arm};
use switchboard_model::ids::TaskId;
use switchboard_model::task::{TaskSpec, TaskSpecError};

/// Checks and [arms](arm) new tasks at `now`, each as if it were alone; returns one result per task, in order.
///
/// A schedule may take a while to look ahead, so others get their turn after each.
pub async fn arm_all(tasks: &[(TaskId, TaskSpec)], now: Timestamp) -> Vec<Result<Armed, TaskSpecError>> {
    let mut armed = Vec::with_capacity(tasks.len());
    for (_, spec) in tasks {
        armed.push(arm(spec.clone(), now));
        tokio::task::yield_now().await;
    }
    armed
}
