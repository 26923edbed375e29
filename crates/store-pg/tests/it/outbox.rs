//! Triggers in the transactions of applications, and how they are relayed.

use std::collections::BTreeSet;

use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _, PgConnection, PgPool};
use switchboard_model::fire::FirePlan;
use switchboard_model::ids::{RunId, TaskId};
use switchboard_model::outbox::FailedEntry;
use switchboard_model::page::PageRequest;
use switchboard_model::run::{Run, RunState, Trigger};
use switchboard_model::span::Span;
use switchboard_model::task::{Task, TaskSpec};
use switchboard_store_api::{
    RelayReport, RunFilter, Stores, TaskCreateOutcome, TaskUpdateOutcome, TriggerOutcome, WriteContext,
};
use switchboard_store_conformance::Backend as _;
use uuid::Uuid;

use crate::backend::PgBackend;

const ALL: PageRequest = PageRequest { after: None, limit: 200 };

fn context() -> WriteContext {
    WriteContext::system("test")
}

async fn create(stores: &Stores, spec: &str) -> Task {
    let spec: TaskSpec = serde_json::from_str(spec).unwrap();
    match stores.tasks.create(&context(), TaskId::new(), &spec).await.unwrap().now().unwrap() {
        TaskCreateOutcome::Created(task) => task,
        outcome => panic!("{outcome:?}"),
    }
}

/// Makes a task that a trigger alone can run.
async fn plain(stores: &Stores, name: &str) -> Task {
    create(stores, &format!(r#"{{"name":"{name}","action":{{"system":{{"function":"nothing"}}}}}}"#)).await
}

/// Calls the function outside any other transaction.
async fn call(pool: &PgPool, task: &str, input: Option<&str>, key: Option<&str>) -> Result<Uuid, sqlx::Error> {
    sqlx::query_scalar("SELECT switchboard.trigger($1, $2::text::json, $3)")
        .bind(task)
        .bind(input)
        .bind(key)
        .fetch_one(pool)
        .await
}

async fn runs(stores: &Stores) -> Vec<Run> {
    stores.runs.list(&RunFilter::default(), &ALL).await.unwrap().items
}

async fn failed(stores: &Stores) -> Vec<FailedEntry> {
    stores.outbox.failed(&ALL).await.unwrap().items
}

async fn relay(stores: &Stores) -> RelayReport {
    stores.outbox.relay(100).await.unwrap()
}

fn report(applied: u64, failed: u64) -> RelayReport {
    RelayReport { applied, failed, more: false }
}

#[tokio::test]
async fn a_rollback_gives_no_run_and_a_commit_exactly_one() {
    let backend = PgBackend::create().await;
    let stores = backend.stores().await;
    plain(&stores, "job").await;
    let mut transaction = backend.database.pool().begin().await.unwrap();
    let trigger = "SELECT switchboard.trigger('job', json_build_object('n', 1))";
    let _: Uuid = sqlx::query_scalar(trigger).fetch_one(&mut *transaction).await.unwrap();
    assert_eq!(relay(&stores).await, report(0, 0), "it is not committed");
    transaction.rollback().await.unwrap();
    assert_eq!(relay(&stores).await, report(0, 0));

    let mut transaction = backend.database.pool().begin().await.unwrap();
    let id: Uuid = sqlx::query_scalar(trigger).fetch_one(&mut *transaction).await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(relay(&stores).await, report(1, 0));
    assert_eq!(relay(&stores).await, report(0, 0));
    let runs = runs(&stores).await;
    assert_eq!(runs.len(), 1);
    assert_eq!((runs[0].id, runs[0].state, runs[0].trigger), (RunId::from_uuid(id), RunState::Queued, Trigger::Sql));
    assert_eq!(runs[0].input.as_ref().unwrap().as_str(), r#"{"n" : 1}"#);
    backend.close().await;
}

#[tokio::test]
async fn the_ids_are_those_of_the_runs_and_grow_with_time() {
    let backend = PgBackend::create().await;
    let stores = backend.stores().await;
    plain(&stores, "job").await;
    let before = RunId::new().as_uuid();
    let ids: Vec<Uuid> = sqlx::query_scalar("SELECT switchboard.trigger('job') FROM generate_series(1, 50)")
        .fetch_all(backend.database.pool())
        .await
        .unwrap();
    for id in &ids {
        assert_eq!((id.get_version_num(), id.get_variant()), (7, uuid::Variant::RFC4122));
        let (ms, _) = id.get_timestamp().unwrap().to_unix();
        let (start, _) = before.get_timestamp().unwrap().to_unix();
        assert!((start - 1..start + 60).contains(&ms), "{id}");
    }
    assert!(ids.windows(2).filter(|pair| pair[0] > pair[1]).count() < 10, "{ids:?}");
    assert_eq!(stores.outbox.relay(20).await.unwrap(), RelayReport { applied: 20, failed: 0, more: true });
    assert_eq!(relay(&stores).await, report(30, 0));
    let made: BTreeSet<Uuid> = runs(&stores).await.iter().map(|run| run.id.as_uuid()).collect();
    assert_eq!(made, ids.into_iter().collect());
    let signals: i64 = sqlx::query_scalar("SELECT count(*) FROM switchboard.signals WHERE kind = 'outbox_filled'")
        .fetch_one(backend.database.pool())
        .await
        .unwrap();
    assert_eq!(signals, 1, "one for the transaction");
    backend.close().await;
}

#[tokio::test]
async fn an_application_that_stands_idle_after_the_call_stalls_nobody() {
    let backend = PgBackend::create().await;
    let stores = backend.stores().await;
    let skip = r#"{"name":"job","action":{"system":{"function":"nothing"}},"overlap":"skip","schedule":{"every":{"interval":"1h"}}}"#;
    let task = create(&stores, skip).await;
    let other = create(&stores, &skip.replace("job", "other")).await;
    let mut idle = backend.database.pool().begin().await.unwrap();
    sqlx::query("SELECT switchboard.trigger('job', '1', 'k')").execute(&mut *idle).await.unwrap();

    // Others go on, and so does the same task; nothing waits, or the lock timeout would end it.
    let manual = stores.runs.trigger(&context(), &new_run(task.id)).await.unwrap().now().unwrap();
    assert!(matches!(manual, TriggerOutcome::Created(_)));
    for task in [&task, &other] {
        let due = switchboard_model::fire::DueTask {
            id: task.id,
            spec: task.spec.clone(),
            next_run_at: task.next_run_at.unwrap(),
            version: task.version,
        };
        let next = Some(due.next_run_at + Span::from_secs(3600).to_delta());
        let plan = FirePlan { task: due, runs: vec![], skips: vec![], next_run_at: next };
        assert_eq!(stores.tasks.fire(&[plan]).await.unwrap().fired, 1);
    }
    call(backend.database.pool(), "other", None, None).await.unwrap();
    assert_eq!(relay(&stores).await, report(1, 0), "what others have left is relayed past it");
    let edited = TaskSpec { priority: 7, ..task.spec.clone() };
    let updated = stores.tasks.update(&context(), task.id, task.version, &edited).await.unwrap();
    assert!(matches!(updated, TaskUpdateOutcome::Updated(_)), "{updated:?}");
    assert!(stores.tasks.delete(&context(), task.id).await.unwrap());
    idle.commit().await.unwrap();
    assert_eq!(relay(&stores).await, report(0, 1));
    backend.close().await;
}

fn new_run(task_id: TaskId) -> switchboard_model::run::NewRun {
    switchboard_model::run::NewRun {
        id: RunId::new(),
        task_id,
        trigger: Trigger::Manual,
        input: None,
        delay: Span::default(),
        dedupe_key: None,
        dedupe_scope: Default::default(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_transactions_with_one_key_and_two_relays_give_one_run() {
    let backend = PgBackend::create().await;
    let (stores, other) = (backend.stores().await, backend.stores().await);
    plain(&stores, "job").await;
    let calls = (0..20).map(|_| call(backend.database.pool(), "job", Some("1"), Some("order-17")));
    let ids: BTreeSet<Uuid> = futures_util::future::try_join_all(calls).await.unwrap().into_iter().collect();
    let relays = (0..4).map(|n| if n % 2 == 0 { stores.outbox.relay(5) } else { other.outbox.relay(5) });
    let reports = futures_util::future::try_join_all(relays).await.unwrap();
    let mut applied: u64 = reports.iter().map(|report| report.applied).sum();
    applied += relay(&stores).await.applied;
    assert_eq!(applied, 20, "a duplicate has what it asked for: {reports:?}");
    let runs = runs(&stores).await;
    assert_eq!(runs.len(), 1);
    assert!(ids.contains(&runs[0].id.as_uuid()));
    assert_eq!(failed(&stores).await, []);
    backend.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_relays_at_once_make_each_run_once() {
    let backend = PgBackend::create().await;
    let (stores, other) = (backend.stores().await, backend.stores().await);
    let queued = r#"{"name":"first","action":{"system":{"function":"nothing"}},"overlap":"queue","queue_max":1000}"#;
    create(&stores, queued).await;
    create(&stores, &queued.replace("first", "second")).await;
    let ids: Vec<Uuid> = sqlx::query_scalar(
        "SELECT switchboard.trigger(CASE WHEN n % 3 = 0 THEN 'first' ELSE 'second' END) FROM generate_series(1, 120) AS n",
    )
    .fetch_all(backend.database.pool())
    .await
    .unwrap();
    let drain = async |stores: &Stores| {
        let mut applied = 0;
        loop {
            match stores.outbox.relay(7).await.unwrap() {
                RelayReport { applied: 0, .. } => break applied,
                report => applied += report.applied,
            }
        }
    };
    let (one, two) = tokio::join!(drain(&stores), drain(&other));
    let rest = drain(&stores).await;
    assert_eq!(one + two + rest, 120);
    let made: BTreeSet<Uuid> = runs(&stores).await.iter().map(|run| run.id.as_uuid()).collect();
    assert_eq!(made, ids.into_iter().collect());
    backend.close().await;
}

#[tokio::test]
async fn what_cannot_take_effect_is_kept_with_its_reason() {
    let backend = PgBackend::create().await;
    let stores = backend.stores().await;
    let pool = backend.database.pool();
    let gone = plain(&stores, "gone").await;
    create(&stores, r#"{"name":"once","action":{"system":{"function":"nothing"}},"overlap":"skip"}"#).await;
    let unreadable = plain(&stores, "unreadable").await;
    for task in ["gone", "once", "once", "unreadable"] {
        call(pool, task, None, None).await.unwrap();
    }
    stores.tasks.delete(&context(), gone.id).await.unwrap();
    sqlx::query("UPDATE switchboard.tasks SET spec = '{}' WHERE id = $1")
        .bind(unreadable.id.as_uuid())
        .execute(pool)
        .await
        .unwrap();
    // A later version may leave other things.
    sqlx::query("INSERT INTO switchboard.outbox (kind, subject) VALUES ('dance', 'room')").execute(pool).await.unwrap();
    assert_eq!(relay(&stores).await, report(1, 4));
    let failed = failed(&stores).await;
    let reasons: Vec<_> = failed.iter().rev().map(|entry| (entry.subject.as_str(), entry.error.as_str())).collect();
    assert_eq!(reasons[0], ("gone", "the task has been deleted"));
    assert!(reasons[1].0 == "once" && reasons[1].1.contains("overlap policy is skip"), "{reasons:?}");
    assert!(reasons[2].0 == "unreadable" && reasons[2].1.contains("cannot be read"), "{reasons:?}");
    assert_eq!(reasons[3].0, "room");
    assert!(failed[0].id > failed[3].id && failed.iter().all(|entry| entry.failed_at >= entry.created_at));

    let first = stores.outbox.failed(&PageRequest { after: None, limit: 3 }).await.unwrap();
    let rest = stores.outbox.failed(&PageRequest { after: first.next_cursor, limit: 3 }).await.unwrap();
    assert_eq!([first.items, rest.items].concat(), failed);
    assert_eq!(stores.outbox.sweep(Span::from_secs(3600), 10).await.unwrap(), 0);
    assert_eq!(stores.outbox.sweep(Span::default(), 3).await.unwrap(), 3);
    assert_eq!(stores.outbox.sweep(Span::default(), 3).await.unwrap(), 1);
    backend.close().await;
}

#[tokio::test]
async fn an_entry_whose_statement_fails_takes_no_other_along() {
    let backend = PgBackend::create().await;
    let stores = backend.stores().await;
    let pool = backend.database.pool();
    let task = plain(&stores, "job").await;
    call(pool, "job", Some("1"), None).await.unwrap();
    let bad = call(pool, "job", Some("2"), None).await.unwrap();
    call(pool, "job", Some("3"), None).await.unwrap();
    sqlx::query(sqlx::AssertSqlSafe(format!(
        "ALTER TABLE switchboard.runs ADD CONSTRAINT refuses_one CHECK (id <> '{bad}')"
    )))
    .execute(pool)
    .await
    .unwrap();
    assert_eq!(relay(&stores).await, report(2, 1));
    let inputs: BTreeSet<String> =
        runs(&stores).await.iter().map(|run| run.input.as_ref().unwrap().as_str().to_owned()).collect();
    assert_eq!(inputs, BTreeSet::from(["1".to_owned(), "3".to_owned()]));
    assert_eq!(failed(&stores).await.len(), 1);
    assert!(runs(&stores).await.iter().all(|run| run.task_id == task.id));
    backend.close().await;
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_in_the_transaction_of_the_application() {
    let backend = PgBackend::create().await;
    let stores = backend.stores().await;
    plain(&stores, "job").await;
    let pool = backend.database.pool();
    let deep = |levels: usize| format!("{}\"[{{\\\"\"{}", "[".repeat(levels), "]".repeat(levels));
    let wide = format!("\"{}\"", "x".repeat(1_048_574));
    for (task, input, key, message) in [
        ("nobody", None, None, "there is no task \"nobody\""),
        ("JOB", None, None, "there is no task \"JOB\""),
        ("job", Some("{\"a\":"), None, "invalid input syntax for type json"),
        ("job", Some(deep(65).as_str()), None, "deeper than 64 levels"),
        ("job", Some(format!("{wide} ").as_str()), None, "the input has 1048577 bytes and may have 1048576"),
        ("job", None, Some(""), "the deduplication key is not usable"),
        ("job", None, Some("two words"), "the deduplication key is not usable"),
        ("job", None, Some("line\n"), "the deduplication key is not usable"),
        ("job", None, Some("é"), "the deduplication key is not usable"),
        ("job", None, Some("k".repeat(201).as_str()), "the deduplication key is not usable"),
    ] {
        let error = call(pool, task, input, key).await.unwrap_err();
        let error = error.as_database_error().unwrap();
        assert!(error.message().contains(message), "{error:?}");
    }
    let none = sqlx::query("SELECT switchboard.trigger(NULL)").execute(pool).await.unwrap_err();
    assert!(none.to_string().contains("the name of the task is missing"), "{none}");
    let key = "k".repeat(200);
    for input in [deep(64), wide] {
        call(pool, "job", Some(&input), Some(&key)).await.unwrap();
    }
    assert_eq!(relay(&stores).await, report(2, 0));
    backend.close().await;
}

#[tokio::test]
async fn inputs_arrive_as_they_were_given() {
    let backend = PgBackend::create().await;
    let stores = backend.stores().await;
    plain(&stores, "job").await;
    let given = [r#"{"a" : "\u0000 \ud800 \u00e9 é", "a":1.0e+400}"#, r#""\udfff""#, "null", "[ ]", "-0.10"];
    let mut ids = Vec::new();
    for text in given {
        ids.push(RunId::from_uuid(call(backend.database.pool(), "job", Some(text), None).await.unwrap()));
    }
    assert_eq!(relay(&stores).await, report(given.len() as u64, 0));
    for (id, text) in ids.into_iter().zip(given) {
        let run = stores.runs.get(id).await.unwrap().unwrap();
        assert_eq!(run.input.unwrap().as_str(), text);
    }
    backend.close().await;
}

#[tokio::test]
async fn a_role_that_may_only_call_it_touches_nothing_else() {
    let backend = PgBackend::create().await;
    let stores = backend.stores().await;
    plain(&stores, "job").await;
    let name = format!("app_{}", Uuid::new_v4().simple());
    let run = async |sql: String| {
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(backend.database.pool()).await.unwrap();
    };
    run(format!("CREATE ROLE {name} LOGIN PASSWORD 'app'; GRANT USAGE ON SCHEMA switchboard TO {name}")).await;
    let options: PgConnectOptions = backend.database.url().parse().unwrap();
    let mut app: PgConnection = options.username(&name).password("app").connect().await.unwrap();
    let refused = sqlx::query("SELECT switchboard.trigger('job')").execute(&mut app).await.unwrap_err();
    assert!(refused.to_string().contains("permission denied for function trigger"), "{refused}");

    run(format!("GRANT EXECUTE ON FUNCTION switchboard.trigger(text, json, text) TO {name}")).await;
    // A table of its own by the name of a trusted one changes nothing.
    sqlx::raw_sql("CREATE TEMP TABLE tasks (id uuid, name text, deleted_at timestamptz); SET search_path = pg_temp")
        .execute(&mut app)
        .await
        .unwrap();
    sqlx::query("SELECT switchboard.trigger('job', '{}', 'k')").execute(&mut app).await.unwrap();
    for forbidden in [
        "SELECT FROM switchboard.tasks",
        "SELECT FROM switchboard.outbox",
        "INSERT INTO switchboard.outbox (kind, subject) VALUES ('trigger', 'job')",
        "INSERT INTO switchboard.signals (kind, key) VALUES ('outbox_filled', 'outbox')",
        "DELETE FROM switchboard.outbox_failed",
        "SELECT nextval('switchboard.fences')",
    ] {
        let error = sqlx::query(forbidden).execute(&mut app).await.unwrap_err();
        assert!(error.to_string().contains("permission denied"), "{forbidden}: {error}");
    }
    app.close().await.unwrap();
    assert_eq!(relay(&stores).await, report(1, 0));
    run(format!("DROP OWNED BY {name}; DROP ROLE {name}")).await;
    backend.close().await;
}
