//! Rows that the database refuses or that cannot be read: each stands alone, its neighbours go on.

use switchboard_model::identity::{Actor, PoolName, RoomName};
use switchboard_model::ids::{InstanceId, RoomId, RunId, TaskId};
use switchboard_model::json_text::JsonText;
use switchboard_model::page::PageRequest;
use switchboard_model::room::{MessageId, NewEvent, NewRoom, Retention, RoomKind};
use switchboard_model::run::{Ending, Finish, LeasedRun, NewRun, RunState, Trigger};
use switchboard_model::span::Span;
use switchboard_model::wire::code::ErrorCode;
use switchboard_store_api::{AppendOutcome, FinishOutcome, LeaseRequest, Stores, WorkerKind, WriteContext};
use switchboard_store_conformance::Backend as _;

use crate::backend::PgBackend;

fn context() -> WriteContext {
    WriteContext::system("test")
}

fn json(text: &str) -> JsonText {
    JsonText::parse(text).unwrap()
}

async fn create_task(stores: &Stores, text: &str) -> TaskId {
    let id = TaskId::new();
    stores.tasks.create(&context(), id, &serde_json::from_str(text).unwrap()).await.unwrap().now().unwrap();
    id
}

async fn trigger(stores: &Stores, task_id: TaskId) -> RunId {
    let (id, delay) = (RunId::new(), Span::default());
    let run = NewRun {
        id,
        task_id,
        trigger: Trigger::Manual,
        input: None,
        delay,
        dedupe_key: None,
        dedupe_scope: Default::default(),
    };
    stores.runs.trigger(&context(), &run).await.unwrap().now().unwrap();
    id
}

async fn lease(stores: &Stores) -> Vec<LeasedRun> {
    let (instance, lease) = (InstanceId::boot("worker"), Span::from_secs(60));
    let request = LeaseRequest {
        holder: instance,
        kind: WorkerKind::Replica,
        request: None,
        pools: vec![PoolName::default_pool()],
        limit: 10,
        lease,
    };
    stores.runs.lease(&request).await.unwrap().runs
}

/// Makes the database refuse one value of a column, as a row can be refused that no check foresaw.
async fn refuse(backend: &PgBackend, statement: &'static str) {
    sqlx::query(statement).execute(backend.database.pool()).await.unwrap();
}

/// Makes a room and returns how an event of it is made from its payload.
async fn lobby(stores: &Stores) -> impl Fn(&str) -> NewEvent + use<> {
    let name: RoomName = "lobby".parse().unwrap();
    let (id, kind, retention) = (RoomId::new(), RoomKind::Public, Retention::default());
    stores.rooms.create(&context(), &NewRoom { id, name: name.clone(), kind, retention }).await.unwrap();
    move |payload| NewEvent {
        room: name.clone(),
        event: "note".parse().unwrap(),
        payload: json(payload),
        msg_id: MessageId::given_or_new(None),
        sender: Actor::System("test"),
    }
}

/// Makes the database answer an event with a code, the first `times` times that it sees it.
async fn fail_event(backend: &PgBackend, payload: &str, code: &str, times: u32) {
    let statements = format!(
        r#"ALTER TABLE switchboard.room_events ADD CHECK (payload <> '"bad"');
           CREATE SEQUENCE switchboard.tries;
           CREATE FUNCTION switchboard.fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
               IF NEW.payload = '{payload}' AND nextval('switchboard.tries') <= {times} THEN
                   RAISE SQLSTATE '{code}';
               END IF;
               RETURN NEW;
           END $$;
           CREATE TRIGGER fail BEFORE INSERT ON switchboard.room_events
               FOR EACH ROW EXECUTE FUNCTION switchboard.fail()"#
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(statements)).execute(backend.database.pool()).await.unwrap();
}

/// Appends a batch that is refused for its first event; says of each event where it went.
async fn append_refused(stores: &Stores) -> Vec<Result<i64, ErrorCode>> {
    let event = lobby(stores).await;
    let batch = [event(r#""bad""#), event("1"), event("2"), event("3")];
    let offset = |outcome| match outcome {
        AppendOutcome::Appended { position, .. } | AppendOutcome::Duplicate(position) => Ok(position.offset),
        AppendOutcome::Refused(code) => Err(code),
    };
    stores.rooms.append(&batch).await.unwrap().into_iter().map(offset).collect()
}

#[tokio::test]
async fn an_event_that_the_database_refuses_does_not_take_its_batch_with_it() {
    let backend = PgBackend::create().await;
    let stores = backend.stores().await;
    fail_event(&backend, "2", "40001", 3).await;
    let expected = [Err(ErrorCode::Internal), Ok(1), Ok(2), Ok(3)];
    assert_eq!(append_refused(&stores).await, expected, "an event that collides is tried again");
    backend.close().await;
}

#[tokio::test]
async fn an_event_that_keeps_colliding_does_not_hide_that_its_neighbours_were_appended() {
    let backend = PgBackend::create().await;
    let stores = backend.stores().await;
    fail_event(&backend, "2", "40001", 1_000).await;
    let expected = [Err(ErrorCode::Internal), Ok(1), Err(ErrorCode::Unavailable), Ok(2)];
    assert_eq!(append_refused(&stores).await, expected);
    backend.close().await;
}

#[tokio::test]
async fn an_outage_amid_refused_events_does_not_hide_what_was_appended_before() {
    let backend = PgBackend::create().await;
    let stores = backend.stores().await;
    fail_event(&backend, "2", "57P01", 1_000).await;
    let unavailable = Err(ErrorCode::Unavailable);
    assert_eq!(append_refused(&stores).await, [Err(ErrorCode::Internal), Ok(1), unavailable, unavailable]);
    backend.close().await;
}

#[tokio::test]
async fn a_task_that_cannot_be_read_is_left_out_of_a_list() {
    let backend = PgBackend::create().await;
    let stores = backend.stores().await;
    for name in ["first", "bad", "last"] {
        create_task(&stores, &format!(r#"{{"name":"{name}","action":{{"system":{{"function":"nothing"}}}}}}"#)).await;
    }
    refuse(&backend, "UPDATE switchboard.tasks SET spec = '{' WHERE name = 'bad'").await;
    let mut page = PageRequest { after: None, limit: 1 };
    let mut pages = Vec::new();
    loop {
        let found = stores.tasks.list(&page).await.unwrap();
        pages.push(found.items.iter().map(|task| task.spec.name.to_string()).collect::<Vec<_>>());
        match found.next_cursor {
            Some(cursor) => page.after = Some(cursor),
            None => break,
        }
    }
    assert_eq!(pages, [vec!["first"], vec![], vec!["last"]]);
    backend.close().await;
}

#[tokio::test]
async fn a_result_that_the_database_refuses_ends_its_run_and_no_other() {
    let backend = PgBackend::create().await;
    let stores = backend.stores().await;
    refuse(&backend, r#"ALTER TABLE switchboard.run_details ADD CHECK (result <> '"bad"')"#).await;
    let task = create_task(&stores, r#"{"name":"t","action":{"system":{"function":"nothing"}}}"#).await;
    for _ in 0..3 {
        trigger(&stores, task).await;
    }
    let leased = lease(&stores).await;
    let finishes: Vec<Finish> = leased
        .iter()
        .zip(["1", r#""bad""#, "2"])
        .map(|(run, result)| Finish { id: run.id, fence: run.fence, ending: Ending::Succeeded(Some(json(result))) })
        .collect();
    let expected = [RunState::Succeeded, RunState::Failed, RunState::Succeeded];
    assert_eq!(stores.runs.finish(&finishes).await.unwrap(), expected.map(FinishOutcome::Accepted));
    let failed = stores.runs.get(leased[1].id).await.unwrap().unwrap();
    assert_eq!(failed.state, RunState::Failed);
    assert!(failed.error.unwrap().starts_with("the result could not be stored"));
    backend.close().await;
}

#[tokio::test]
async fn a_run_whose_task_cannot_be_read_fails_and_frees_its_permit() {
    let backend = PgBackend::create().await;
    let stores = backend.stores().await;
    let limited = |name| {
        format!(
            r#"{{"name":"{name}","action":{{"system":{{"function":"nothing"}}}},"concurrency":{{"key":"k","max":1}}}}"#
        )
    };
    let bad = create_task(&stores, &limited("bad")).await;
    let good = create_task(&stores, &limited("good")).await;
    let (unreadable, waiting) = (trigger(&stores, bad).await, trigger(&stores, good).await);
    refuse(&backend, "UPDATE switchboard.tasks SET spec = '{' WHERE name = 'bad'").await;
    assert_eq!(lease(&stores).await, []);
    let failed = stores.runs.get(unreadable).await.unwrap().unwrap();
    assert_eq!(failed.state, RunState::Failed);
    assert!(failed.error.unwrap().starts_with("the task cannot be read"));
    assert_eq!(lease(&stores).await.iter().map(|run| run.id).collect::<Vec<_>>(), [waiting]);
    backend.close().await;
}

#[tokio::test]
async fn a_due_task_that_cannot_be_read_is_parked_until_it_is_replaced() {
    let backend = PgBackend::create().await;
    let stores = backend.stores().await;
    let every = |name| {
        format!(
            r#"{{"name":"{name}","schedule":{{"every":{{"interval":"1h"}}}},
                "action":{{"system":{{"function":"nothing"}}}}}}"#
        )
    };
    let bad = create_task(&stores, &every("bad")).await;
    let good = create_task(&stores, &every("good")).await;
    refuse(&backend, "UPDATE switchboard.tasks SET next_run_at = now()").await;
    refuse(&backend, "UPDATE switchboard.tasks SET spec = '{' WHERE name = 'bad'").await;
    for _ in 0..2 {
        let due = stores.tasks.due(10).await.unwrap().tasks;
        assert_eq!(due.iter().map(|task| task.id).collect::<Vec<_>>(), [good]);
    }
    let parked: Option<String> = sqlx::query_scalar("SELECT parked FROM switchboard.tasks WHERE name = 'bad'")
        .fetch_one(backend.database.pool())
        .await
        .unwrap();
    assert!(parked.is_some());
    let spec = serde_json::from_str(&every("bad")).unwrap();
    stores.tasks.update(&context(), bad, 1, &spec).await.unwrap();
    let replaced = stores.tasks.get(bad).await.unwrap().unwrap();
    assert_eq!((replaced.version, replaced.parked), (2, None));
    assert!(replaced.next_run_at.is_some());
    backend.close().await;
}
