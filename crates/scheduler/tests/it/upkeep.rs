//! System tasks: their installation and the upkeep that they do.

use std::collections::{BTreeMap, BTreeSet};

use switchboard_model::identity::{PoolName, TaskName};
use switchboard_model::instance::Role;
use switchboard_model::page::PageRequest;
use switchboard_model::run::RunState;
use switchboard_model::setting::FleetSettings;
use switchboard_model::span::Span;
use switchboard_model::task::TaskSpec;
use switchboard_scheduler::{HistoryAges, REWRAP_SECRETS, SchedulerLoop, SystemRegistry, install_system_tasks};

use crate::fixtures::{Bench, context, every_100_ms, json, spec};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn system_tasks_are_installed_once_and_left_as_operators_want_them() {
    let bench = Bench::new().await;
    let (first, second) = tokio::join!(install_system_tasks(&bench.stores), install_system_tasks(&bench.stores));
    first.unwrap();
    second.unwrap();
    let tasks = bench.stores.tasks.list(&PageRequest { after: None, limit: 100 }).await.unwrap().items;
    let names: BTreeSet<&str> = tasks.iter().map(|task| task.spec.name.as_str()).collect();
    let functions = ["check_tasks", "prune_history", "rewrap_secrets", "sweep_expired", "trim_feed", "trim_rooms"];
    assert_eq!(names, functions.map(|name| ["system:", name].concat()).iter().map(String::as_str).collect());
    assert_eq!(tasks.len(), names.len());
    assert!(tasks.iter().all(|task| task.next_run_at.is_some()));

    let paused = bench.stores.tasks.set_active(&context(), tasks[0].id, false).await.unwrap().unwrap();
    install_system_tasks(&bench.stores).await.unwrap();
    assert_eq!(bench.stores.tasks.get(paused.id).await.unwrap(), Some(paused));
    bench.close([]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_one_task_of_earlier_versions_hands_its_schedule_on() {
    let bench = Bench::new().await;
    let rescheduled = spec("sweep", |spec| {
        spec.name = "system:sweep".parse().unwrap();
        spec.schedule = every_100_ms("sweep").schedule;
        spec.is_active = false;
    });
    let former = bench.create(&rescheduled).await;
    install_system_tasks(&bench.stores).await.unwrap();
    assert_eq!(bench.stores.tasks.get(former.id).await.unwrap(), None);
    let tasks = bench.stores.tasks.list(&PageRequest { after: None, limit: 100 }).await.unwrap().items;
    assert_eq!(tasks.len(), 6);
    assert!(tasks.iter().all(|task| task.spec.schedule == former.spec.schedule && !task.spec.is_active));

    // A task of the same name that does something else is not touched.
    let other = bench.create(&spec("other", |spec| spec.name = "system:sweep".parse().unwrap())).await;
    install_system_tasks(&bench.stores).await.unwrap();
    assert_eq!(bench.stores.tasks.get(other.id).await.unwrap(), Some(other));
    bench.close([]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upkeep_forgets_old_runs_and_counts_what_it_did() {
    let bench = Bench::new().await;
    let registry =
        SystemRegistry::standard(&bench.stores, HistoryAges { runs: Span::default(), audit: Span::default() })
            .with("act", |_| std::future::ready(Ok(json("null"))));
    let replica = bench.replica(registry);
    let old = bench.triggered("act", |_| {}).await;
    bench.until_state(old, RunState::Succeeded).await;

    install_system_tasks(&bench.stores).await.unwrap();
    let mut counts = BTreeMap::new();
    for name in ["prune_history", "sweep_expired", "trim_rooms", "trim_feed", "check_tasks"] {
        let name: TaskName = ["system:", name].concat().parse().unwrap();
        let task = bench.stores.tasks.find(&name).await.unwrap().unwrap();
        let run = bench.trigger(&task).await;
        let run = bench.until_state(run, RunState::Succeeded).await;
        counts.extend(run.result.unwrap().decode::<BTreeMap<String, u64>>().unwrap());
    }
    assert_eq!((counts["runs"], counts["repaired_tasks"]), (1, 0));
    for what in ["tickets", "once", "signals", "room_events", "instances", "audit", "deleted_tasks"] {
        assert!(counts.contains_key(what), "{what} in {counts:?}");
    }
    assert_eq!(bench.stores.runs.get(old).await.unwrap(), None);
    bench.close([replica]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upkeep_goes_on_under_a_pause_of_the_fleet_and_other_work_does_not() {
    let bench = Bench::new().await;
    let paused = FleetSettings { pause_all: true, ..FleetSettings::default() };
    bench.stores.settings.put_fleet(&context(), 0, &paused).await.unwrap();
    let ages = HistoryAges { runs: Span::from_secs(3_600), audit: Span::from_secs(3_600) };
    let registry =
        SystemRegistry::standard(&bench.stores, ages).with(REWRAP_SECRETS, |_| std::future::ready(Ok(json("null"))));
    let replica = bench.replica(registry);
    let other = bench.triggered("noop", |_| {}).await;
    install_system_tasks(&bench.stores).await.unwrap();
    let mut upkeep = Vec::new();
    for task in bench.stores.tasks.list(&PageRequest { after: None, limit: 100 }).await.unwrap().items {
        if task.spec.name.as_str() != "noop" {
            upkeep.push(bench.trigger(&task).await);
        }
    }
    assert_eq!(upkeep.len(), 6);
    for run in upkeep {
        bench.until_state(run, RunState::Succeeded).await;
    }
    assert_eq!(bench.run(other).await.state, RunState::Queued);
    bench.stores.settings.put_fleet(&context(), 1, &FleetSettings::default()).await.unwrap();
    bench.until_state(other, RunState::Succeeded).await;
    bench.close([replica]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn system_tasks_of_earlier_versions_move_to_their_pool_unless_operators_moved_them() {
    let bench = Bench::new().await;
    let former = |function: &str, pool: &str| {
        spec(function, |spec| {
            spec.name = format!("system:{function}").parse().unwrap();
            spec.pool = pool.parse().unwrap();
            spec.schedule = every_100_ms(function).schedule;
            spec.is_active = false;
        })
    };
    let moved = bench.create(&former("trim_feed", "default")).await;
    let kept = bench.create(&former("trim_rooms", "heavy")).await;
    let other = bench.create(&spec("noop", |spec| spec.name = "system:check_tasks".parse().unwrap())).await;
    install_system_tasks(&bench.stores).await.unwrap();
    let read = async |id| bench.stores.tasks.get(id).await.unwrap().unwrap();
    let wanted = TaskSpec { pool: PoolName::system_pool(), ..moved.spec.clone() };
    assert_eq!(read(moved.id).await.spec, wanted);
    assert_eq!((read(kept.id).await, read(other.id).await), (kept, other));
    install_system_tasks(&bench.stores).await.unwrap();
    assert_eq!(read(moved.id).await.version, moved.version + 1);
    bench.close([]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_runs_the_loops_of_its_roles() {
    let bench = Bench::new().await;
    let mut replicas = Vec::new();
    for roles in [vec![], vec![Role::Api], vec![Role::Scheduler], vec![Role::Worker], Role::ALL.to_vec()] {
        let replica =
            bench.replica_with(&bench.stores, SystemRegistry::default(), |options| options.roles = roles.clone());
        let mut found: Vec<_> = replica.handle.loops().iter().map(|status| status.name).collect();
        let mut expected: Vec<_> = SchedulerLoop::ALL
            .into_iter()
            .filter(|each| roles.contains(&each.role()))
            .map(SchedulerLoop::name)
            .collect();
        found.sort_unstable();
        expected.sort_unstable();
        assert_eq!(found, expected);
        replicas.push(replica);
    }
    let unserved = bench.create(&spec("nothing", |spec| spec.pool = "elsewhere".parse().unwrap())).await;
    let id = bench.trigger(&unserved).await;
    assert_eq!(bench.run(id).await.state, RunState::Queued);
    bench.close(replicas).await;
}
