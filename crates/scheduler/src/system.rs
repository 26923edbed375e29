//! Functions of the server itself, called as runs, so that operators see and reschedule upkeep.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use switchboard_model::identity::PoolName;
use switchboard_model::ids::TaskId;
use switchboard_model::json_text::JsonText;
use switchboard_model::run::LeasedRun;
use switchboard_model::task::{Action, TaskSpec};
use switchboard_store_api::{StoreError, StoreResult, Stores, TaskCreateOutcome, WriteContext, Written};
use tokio_util::sync::CancellationToken;

use crate::actions::{ActionError, ActionRunner, RunOutput};
use crate::sweep::{HistoryAges, Upkeep, keep_up};

/// The function that brings encrypted values under the current key. It has a task of its own like the parts of the upkeep,
/// and comes from the server, which has the keys.
pub const REWRAP_SECRETS: &str = "rewrap_secrets";

/// The task that earlier versions had in place of those of today, and its function, which does all they do.
const FORMER: &str = "system:sweep";
const FORMER_FUNCTION: &str = "sweep";

type Function = Box<
    dyn Fn(CancellationToken, Arc<dyn RunOutput>) -> BoxFuture<'static, Result<JsonText, ActionError>> + Send + Sync,
>;

/// Named functions that a task can call.
#[derive(Default)]
pub struct SystemRegistry(BTreeMap<&'static str, Function>);

impl SystemRegistry {
    /// Makes a registry of the functions of this crate, which keep the database in order and forget what has happened
    /// after its age; `noop` does nothing, to try out and to measure with.
    #[must_use]
    pub fn standard(stores: &Stores, ages: HistoryAges) -> Self {
        let add = |registry: Self, name, parts: Vec<Upkeep>| {
            let stores = stores.clone();
            let parts: Arc<[Upkeep]> = parts.into();
            registry.with(name, move |stop| {
                let (stores, parts) = (stores.clone(), parts.clone());
                async move { keep_up(&parts, stores, ages, stop).await }
            })
        };
        let own = Self::default().with("noop", |_| std::future::ready(Ok(JsonText::null())));
        let all = add(own, FORMER_FUNCTION, Upkeep::ALL.to_vec());
        Upkeep::ALL.into_iter().fold(all, |registry, part| add(registry, part.function(), vec![part]))
    }

    /// Adds a function, in place of an earlier one of the same name. It is given the token that
    /// says when to stop.
    #[must_use]
    pub fn with<F, R>(self, name: &'static str, function: F) -> Self
    where
        F: Fn(CancellationToken) -> R + Send + Sync + 'static,
        R: Future<Output = Result<JsonText, ActionError>> + Send + 'static,
    {
        self.with_output(name, move |stop, _| function(stop))
    }

    /// Adds a function that says something while it is under way.
    #[must_use]
    pub fn with_output<F, R>(mut self, name: &'static str, function: F) -> Self
    where
        F: Fn(CancellationToken, Arc<dyn RunOutput>) -> R + Send + Sync + 'static,
        R: Future<Output = Result<JsonText, ActionError>> + Send + 'static,
    {
        self.0.insert(name, Box::new(move |stop, output| function(stop, output).boxed()));
        self
    }
}

/// Executes actions of kind `system`.
pub struct SystemRunner(SystemRegistry);

impl SystemRunner {
    /// Serves the functions of `registry`.
    #[must_use]
    pub const fn new(registry: SystemRegistry) -> Self {
        Self(registry)
    }
}

#[async_trait]
impl ActionRunner for SystemRunner {
    fn kind(&self) -> &'static str {
        "system"
    }

    async fn run(
        &self,
        run: &LeasedRun,
        stop: &CancellationToken,
        output: &Arc<dyn RunOutput>,
    ) -> Result<Option<JsonText>, ActionError> {
        let Action::System(action) = &run.action else {
            return Err(ActionError::Permanent("not an action of kind system".to_owned()));
        };
        // A newer replica may know it, so another attempt can help.
        let unknown = || ActionError::retryable(format!("this replica knows no function {:?}", action.function));
        let function = self.0.0.get(action.function.as_str()).ok_or_else(unknown)?;
        // A function that has nothing to say leaves no result behind.
        Ok(Some(function(stop.clone(), output.clone()).await?).filter(|result| *result != JsonText::null()))
    }
}

/// Installs the tasks that every deployment has, one for each part of the upkeep. Those that exist stay as operators
/// left them, but for the pool that earlier versions gave them; replicas that boot together may all install. The one task
/// of earlier versions hands its schedule on and is deleted.
///
/// # Errors
/// Fails when the database does.
pub async fn install_system_tasks(stores: &Stores) -> StoreResult<()> {
    let context = WriteContext::system("scheduler");
    let former =
        stores.tasks.find(&FORMER.parse().map_err(corrupt)?).await?.filter(|task| calls(&task.spec, FORMER_FUNCTION));
    for function in installed() {
        let mut spec = system_task(function).map_err(corrupt)?;
        if let Some(former) = &former {
            spec.schedule = former.spec.schedule.clone();
            spec.is_active = former.spec.is_active;
        }
        let outcome = stores.tasks.create(&context, TaskId::new(), &spec).await?;
        match outcome {
            Written::Now(TaskCreateOutcome::Refused(error)) => return Err(corrupt(error)),
            Written::Now(TaskCreateOutcome::NameTaken(id)) => {
                leave_default_pool(stores, &context, id, function).await?
            }
            _ => {}
        }
    }
    if let Some(former) = former {
        stores.tasks.delete(&context, former.id).await?;
    }
    Ok(())
}

/// Moves a task that is still in the pool of earlier versions, where a pause of the fleet stops it, to that of upkeep.
async fn leave_default_pool(stores: &Stores, context: &WriteContext, id: TaskId, function: &str) -> StoreResult<()> {
    let Some(task) = stores.tasks.get(id).await? else { return Ok(()) };
    if calls(&task.spec, function) && task.spec.pool == PoolName::default_pool() {
        let spec = TaskSpec { pool: PoolName::system_pool(), ..task.spec };
        // Whoever was faster has moved it, or knows better.
        stores.tasks.update(context, id, task.version, &spec).await?;
    }
    Ok(())
}

fn calls(spec: &TaskSpec, function: &str) -> bool {
    matches!(&spec.action, Action::System(action) if action.function == function)
}

/// Names the functions that have a task.
fn installed() -> impl Iterator<Item = &'static str> {
    Upkeep::ALL.into_iter().map(Upkeep::function).chain([REWRAP_SECRETS])
}

/// Returns the task that calls a function.
fn system_task(function: &str) -> Result<TaskSpec, serde_json::Error> {
    serde_json::from_value(serde_json::json!({
        "name": format!("system:{function}"),
        "schedule": {"every": {"interval": "5m"}},
        "action": {"system": {"function": function}},
        "overlap": "skip",
        "pool": PoolName::SYSTEM,
        "timeout": "4m",
        "priority": 100,
    }))
}

fn corrupt(error: impl std::fmt::Display) -> StoreError {
    StoreError::corrupt("system task", error)
}

#[cfg(test)]
mod tests {
    use switchboard_model::ids::{Fence, RunId};
    use switchboard_model::task::Backoff;

    use super::*;
    use crate::actions::{NoOutput, OutputSink as _};

    fn run_of(function: &str) -> LeasedRun {
        let at = "2027-01-01T00:00:00Z".parse().unwrap();
        LeasedRun {
            id: RunId::new(),
            task_id: TaskId::new(),
            task_name: "t".parse().unwrap(),
            fence: Fence(1),
            attempt: 1,
            max_attempts: 3,
            reclaimed: false,
            retries: 0,
            scheduled_for: None,
            run_at: at,
            leased_at: at,
            lease_until: at,
            timeout: None,
            backoff: Backoff::default(),
            action: serde_json::from_value(serde_json::json!({"system": {"function": function}})).unwrap(),
            input: None,
        }
    }

    #[tokio::test]
    async fn functions_are_called_by_name() {
        let registry = SystemRegistry::default()
            .with("one", async |_| JsonText::parse("1").map_err(|error| ActionError::Permanent(error.to_string())))
            .with("none", async |_| Err(ActionError::Permanent("nothing".to_owned())));
        let runner = SystemRunner::new(registry);
        let stop = CancellationToken::new();
        let call = async |name: &str| {
            let run = run_of(name);
            runner.run(&run, &stop, &NoOutput.begin(&run)).await
        };
        assert_eq!(runner.kind(), run_of("one").action.kind());
        assert_eq!(call("one").await.unwrap().unwrap().as_str(), "1");
        assert_eq!(call("none").await, Err(ActionError::Permanent("nothing".to_owned())));
        assert!(matches!(call("other").await, Err(ActionError::Retryable { .. })));
    }

    #[test]
    fn system_tasks_are_valid_definitions() {
        for function in installed() {
            system_task(function).unwrap().checked("2027-01-01T00:00:00Z".parse().unwrap()).unwrap();
        }
    }
}
