//! Triggers beside edits of their task: each run goes by one definition, and follows the action of the task.

use switchboard_model::run::{Ending, LeasedRun};
use switchboard_model::task::{Action, PullAction, Task, TaskSpec};
use switchboard_store_api::{LeaseRequest, Stores, TaskUpdateOutcome, WorkerKind};

use crate::Backend;
use crate::fixtures::{LONG, contend, create, finish, new_run, replicas, request, run, spec, system, trigger};

/// How many runs are triggered beside each edit.
const RUNS: usize = 7 * 3;

async fn edited(stores: &Stores, before: &Task, wanted: &TaskSpec) -> Task {
    match stores.tasks.update(&system(), before.id, before.version, wanted).await.unwrap() {
        TaskUpdateOutcome::Updated(task) => task,
        other => panic!("edit not accepted: {other:?}"),
    }
}

async fn leased(stores: &Stores, kind: WorkerKind) -> Vec<LeasedRun> {
    stores.runs.lease(&LeaseRequest { kind, ..request(100, LONG) }).await.unwrap().runs
}

pub(crate) async fn a_run_that_is_made_beside_an_edit_goes_by_one_definition(backend: &dyn Backend) {
    let stores = replicas(backend, 4).await;
    let builtin = spec("moved", |spec| (spec.priority, spec.max_attempts) = (1, 1));
    let pull = spec("moved", |spec| {
        spec.action = Action::Pull(PullAction {});
        (spec.priority, spec.max_attempts) = (2, 2);
    });
    let mut task = create(&stores[0], &builtin).await;
    for round in 0..20 {
        let (wanted, theirs, others) = match round % 2 {
            0 => (&pull, WorkerKind::External, WorkerKind::Replica),
            _ => (&builtin, WorkerKind::Replica, WorkerKind::External),
        };
        let outcomes = contend(&stores, 8, |stores, n| {
            let (before, wanted) = (task.clone(), wanted.clone());
            async move {
                if n == 0 {
                    return Some(edited(&stores, &before, &wanted).await);
                }
                for _ in 0..3 {
                    trigger(&stores, new_run(before.id)).await;
                }
                None
            }
        })
        .await;
        task = outcomes.into_iter().flatten().next().expect("one of them has edited the task");
        assert_eq!(leased(&stores[0], others).await, [], "no run is left with the action from before");
        let all = leased(&stores[0], theirs).await;
        assert_eq!(all.len(), RUNS);
        for leased in all {
            let made = run(&stores[0], leased.id).await;
            assert!([(1, 1), (2, 2)].contains(&(made.priority, made.max_attempts)), "half of either: {made:?}");
            finish(&stores[0], &leased, Ending::Succeeded(None)).await;
        }
    }
}
