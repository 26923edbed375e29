//! The way of working behind a transaction pooler: no prepared names, no session settings.

use switchboard_model::audit::{AuditFilter, AuditOrder};
use switchboard_model::auth_session::Credential;
use switchboard_model::feed::{ListenerMode, TickRequest};
use switchboard_model::identity::{Actor, PoolName};
use switchboard_model::ids::{InstanceId, RoomId, RunId, SessionId, TaskId};
use switchboard_model::json_text::JsonText;
use switchboard_model::page::PageRequest;
use switchboard_model::room::{MessageId, NewEvent, NewRoom, Retention, RoomKind};
use switchboard_model::run::{Ending, Finish, NewRun, RunState, Trigger};
use switchboard_model::span::Span;
use switchboard_store_api::{FinishOutcome, LeaseRequest, LimitTake, RenewOutcome, Renewal, WorkerKind, WriteContext};
use switchboard_store_conformance::Backend as _;
use switchboard_store_pg::PgOptions;
use switchboard_testkit::Pooler;

use crate::backend::{PgBackend, options};

#[tokio::test]
async fn every_kind_of_statement_works_behind_a_pooler() {
    let backend = PgBackend::create().await;
    let pooler = Pooler::before(&backend.database).await;
    let stores = backend.open(&PgOptions { pooled: true, pool_size: 2, ..options(pooler.url()) }).await;
    assert_eq!(stores.feed.hints().mode(), ListenerMode::Polling);
    let context = WriteContext::system("test");
    let cursor = stores.feed.tick(None, &TickRequest::default()).await.unwrap().cursor;

    let spec = serde_json::from_str(r#"{"name":"t","action":{"system":{"function":"nothing"}}}"#).unwrap();
    let task_id = TaskId::new();
    stores.tasks.create(&context, task_id, &spec).await.unwrap().now().unwrap();
    let run = NewRun {
        id: RunId::new(),
        task_id,
        trigger: Trigger::Manual,
        input: None,
        delay: Span::default(),
        dedupe_key: None,
        dedupe_scope: Default::default(),
    };
    stores.runs.trigger(&context, &run).await.unwrap();
    let lease = Span::from_secs(60);
    let request = LeaseRequest {
        kind: WorkerKind::Replica,
        request: None,
        holder: InstanceId::boot("w"),
        pools: vec![PoolName::default_pool()],
        limit: 5,
        lease,
    };
    let leased = stores.runs.lease(&request).await.unwrap().runs.remove(0);
    let renewal = Renewal { id: leased.id, fence: leased.fence };
    assert_eq!(stores.runs.renew(WorkerKind::Replica, &[renewal], lease).await.unwrap(), [RenewOutcome::Renewed]);
    let finish = Finish { id: leased.id, fence: leased.fence, ending: Ending::Succeeded(None) };
    let outcomes = stores.runs.finish(&[finish]).await.unwrap();
    assert_eq!(outcomes, [FinishOutcome::Accepted(RunState::Succeeded)]);
    assert_eq!(stores.runs.get(run.id).await.unwrap().unwrap().state, RunState::Succeeded);

    let name: switchboard_model::identity::RoomName = "lobby".parse().unwrap();
    let room =
        NewRoom { id: RoomId::new(), name: name.clone(), kind: RoomKind::Public, retention: Retention::default() };
    stores.rooms.create(&context, &room).await.unwrap();
    let event = NewEvent {
        room: name.clone(),
        event: "note".parse().unwrap(),
        payload: JsonText::null(),
        msg_id: MessageId::given_or_new(None),
        sender: Actor::System("test"),
    };
    stores.rooms.append(&[event]).await.unwrap();
    assert_eq!(stores.rooms.history(&name, 0, 10).await.unwrap().unwrap().top, 1);
    let tick = stores.feed.tick(Some(&cursor), &TickRequest::default()).await.unwrap();
    assert!(!tick.resync);
    assert_eq!(tick.signals.len(), 4, "task, pool, room and events: {:?}", tick.signals);
    let take = LimitTake { key: "k".to_owned(), rate: "1/1h burst 1".parse().unwrap(), cost: 1 };
    for expected in [true, false] {
        assert_eq!(stores.limits.take(std::slice::from_ref(&take)).await.unwrap()[0].allowed, expected);
    }
    let other = LimitTake { key: "other".to_owned(), ..take.clone() };
    assert!(!stores.limits.take(&[take, other]).await.unwrap()[0].allowed);
    let asked = [Credential::Session(SessionId::new())];
    assert_eq!(stores.auth_sessions.revoked(&asked).await.unwrap(), asked);
    let (filter, page) = (AuditFilter::default(), PageRequest::default());
    assert_eq!(stores.audit.list(&filter, AuditOrder::NewestFirst, &page).await.unwrap().items, []);
    stores.feed.ping().await.unwrap();
    assert_eq!(stores.once.sweep(10).await.unwrap(), 0);
    backend.close().await;
}
