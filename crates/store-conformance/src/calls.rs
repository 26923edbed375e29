//! Calls: to whom they are offered, who has them, and how they end.

use switchboard_model::Timestamp;
use switchboard_model::call::{
    Call, CallAnswer, CallState, Claimed, NewCall, OFFER_TIME, PENDING_CALLS, STANDING_OFFERS, WhenAbsent,
    call_timeout, no_responder,
};
use switchboard_model::connection::NewConnection;
use switchboard_model::feed::{SignalKind, TickRequest};
use switchboard_model::identity::{Actor, UserId};
use switchboard_model::ids::{CallId, ClaimToken, ConnectionId, InstanceId};
use switchboard_model::instance::Role;
use switchboard_model::span::Span;
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::frame::ReplyError;
use switchboard_store_api::{AdvanceReport, ClaimOutcome, ConnectOutcome, ReplyOutcome, Stores};

use crate::Backend;
use crate::accounts::user;
use crate::fixtures::{
    HOUR, LONG, Reader, SHORT, database_time, json, new_instance, now, once, replayed, system, until, wait_past,
};

/// More than any case moves at once.
pub(crate) const MANY: u32 = 100;

/// Announces a replica.
pub(crate) async fn replica(stores: &Stores, lease: Span) -> InstanceId {
    let new = new_instance("replica", &[Role::Api]);
    stores.instances.register(&new, lease).await.unwrap();
    new.id
}

/// Opens a socket of a user on a replica.
pub(crate) async fn open(stores: &Stores, instance: &InstanceId, user_id: &UserId) -> ConnectionId {
    let new = NewConnection { id: ConnectionId::new(), instance: instance.clone(), user_id: user_id.clone() };
    let outcomes = stores.connections.connect(std::slice::from_ref(&new), 20).await.unwrap();
    assert_eq!(outcomes, [ConnectOutcome::Connected]);
    new.id
}

/// A call of `ann` that fails when she is not there.
pub(crate) fn new_call() -> NewCall {
    NewCall {
        id: CallId::new(),
        user_id: user("ann"),
        event: "tool.call".parse().unwrap(),
        payload: json(r#"{"n": 1.0}"#),
        sender: Actor::System("conformance"),
        timeout: LONG,
        when_absent: WhenAbsent::Fail,
    }
}

/// A call of `ann` that waits for her.
pub(crate) fn waiting_call() -> NewCall {
    NewCall { when_absent: WhenAbsent::Wait, ..new_call() }
}

/// Stores a call.
pub(crate) async fn make(stores: &Stores, call: &NewCall) -> Call {
    now(stores.calls.create(&system(), call).await.unwrap())
}

/// Reads a call that must exist.
async fn found(stores: &Stores, id: CallId) -> Call {
    stores.calls.find(id).await.unwrap().expect("the call exists")
}

/// Returns which connection of `ann` each of her calls is offered to, and until when.
pub(crate) async fn offered(stores: &Stores) -> Vec<(CallId, ConnectionId, Timestamp)> {
    let offers = stores.calls.offers(&[user("ann"), user("nobody")]).await.unwrap();
    offers.into_iter().map(|offered| (offered.offer.call_id, offered.connection, offered.until)).collect()
}

/// Moves on, as soon as there is something to move.
async fn advance(stores: &Stores) -> AdvanceReport {
    until(async || stores.calls.advance(MANY).await.unwrap(), |report| *report != AdvanceReport::default()).await
}

/// Claims a call that must be free.
pub(crate) async fn claim(stores: &Stores, call: CallId, connection: ConnectionId) -> ClaimToken {
    match stores.calls.claim(&user("ann"), call, connection).await.unwrap() {
        ClaimOutcome::Claimed(Claimed { token }) => token,
        other => panic!("not claimed: {other:?}"),
    }
}

fn done() -> CallAnswer {
    CallAnswer::Done(json(r#"{"ok" : 1}"#))
}

pub(crate) async fn a_call_is_offered_to_the_newest_connection(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let instance = replica(&stores, LONG).await;
    open(&stores, &instance, &user("ann")).await;
    let newest = open(&stores, &instance, &user("ann")).await;
    open(&stores, &instance, &user("bob")).await;
    let mut reader = Reader::start(&stores).await;
    let call = new_call();
    let made = make(&stores, &call).await;
    assert_eq!(made.state, CallState::Offered);
    assert_eq!((&made.user_id, &made.event, &made.payload), (&call.user_id, &call.event, &call.payload));
    assert_eq!((made.sender.as_str(), made.deadline_at), ("system:conformance", made.created_at + LONG.to_delta()));
    assert_eq!((&made.claimed_by, &made.result, &made.error, &made.ended_at), (&None, &None, &None, &None));
    assert_eq!(found(&stores, call.id).await, made);
    assert_eq!(stores.calls.find(CallId::new()).await.unwrap(), None);
    assert_eq!(reader.changes().await, [(SignalKind::CallOffered, "ann".to_owned())]);

    let offers = stores.calls.offers(&[user("ann")]).await.unwrap();
    let [offered] = offers.as_slice() else { panic!("one offer expected, found {offers:?}") };
    assert_eq!((&offered.user_id, offered.connection), (&call.user_id, newest));
    assert_eq!(offered.until, made.created_at + OFFER_TIME.to_delta());
    assert_eq!((offered.offer.call_id, &offered.offer.event), (call.id, &call.event));
    assert_eq!(offered.offer.payload, call.payload);
    assert!((1..=LONG.as_millis()).contains(&offered.offer.deadline_ms));
    assert_eq!(stores.calls.offers(&[user("bob")]).await.unwrap(), []);
    assert_eq!(stores.calls.offers(&[]).await.unwrap(), []);
}

pub(crate) async fn a_call_that_nobody_can_take_fails_at_once(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let instance = replica(&stores, LONG).await;
    open(&stores, &instance, &user("bob")).await;
    let mut reader = Reader::start(&stores).await;
    let call = new_call();
    let made = make(&stores, &call).await;
    assert_eq!((made.state, &made.error), (CallState::Failed, &Some(no_responder())));
    assert_eq!(made.ended_at, Some(made.created_at));
    assert_eq!(found(&stores, call.id).await, made);
    assert_eq!(reader.changes().await, [(SignalKind::CallEnded, call.id.to_string())]);
    let late = open(&stores, &instance, &user("ann")).await;
    assert_eq!(stores.calls.pending(&user("ann"), late).await.unwrap(), []);
    assert_eq!(stores.calls.claim(&user("ann"), call.id, late).await.unwrap(), ClaimOutcome::Conflict);
}

pub(crate) async fn a_call_that_waits_is_offered_to_the_connection_that_comes(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let instance = replica(&stores, LONG).await;
    let call = waiting_call();
    assert_eq!(make(&stores, &call).await.state, CallState::Offered);
    assert_eq!(offered(&stores).await, []);
    let connection = open(&stores, &instance, &user("ann")).await;
    let mut reader = Reader::start(&stores).await;
    let pending = stores.calls.pending(&user("ann"), connection).await.unwrap();
    let [only] = pending.as_slice() else { panic!("one call expected, found {pending:?}") };
    assert_eq!((only.offer.call_id, only.connection), (call.id, connection));
    assert_eq!(offered(&stores).await, [(call.id, connection, only.until)]);
    assert_eq!(reader.changes().await, [(SignalKind::CallOffered, "ann".to_owned())]);
    claim(&stores, call.id, connection).await;
}

pub(crate) async fn an_offer_that_is_not_taken_goes_to_the_next_and_around(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let instance = replica(&stores, LONG).await;
    let oldest = open(&stores, &instance, &user("ann")).await;
    let middle = open(&stores, &instance, &user("ann")).await;
    let newest = open(&stores, &instance, &user("ann")).await;
    let call = new_call();
    make(&stores, &call).await;
    let mut reader = Reader::start(&stores).await;
    let mut last = offered(&stores).await[0].2;
    for expected in [middle, oldest, newest] {
        assert_eq!(advance(&stores).await, AdvanceReport { offered: 1, ended: 0, more: false });
        let offers = offered(&stores).await;
        let [(id, connection, until)] = offers.as_slice() else { panic!("one offer expected, found {offers:?}") };
        assert_eq!((*id, *connection), (call.id, expected));
        assert!(*until >= last + OFFER_TIME.to_delta(), "another offer, after the one before had its time");
        last = *until;
        assert_eq!(reader.changes().await, [(SignalKind::CallOffered, "ann".to_owned())]);
    }
}

pub(crate) async fn connections_of_dead_replicas_are_passed_over(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let live = replica(&stores, LONG).await;
    let reachable = open(&stores, &live, &user("ann")).await;
    let dying = replica(&stores, SHORT).await;
    open(&stores, &dying, &user("ann")).await;
    until(async || stores.instances.list().await.unwrap(), |listed| listed.len() == 1).await;
    let call = new_call();
    make(&stores, &call).await;
    assert_eq!(offered(&stores).await[0].1, reachable);
    let patient = waiting_call();
    make(&stores, &patient).await;

    stores.connections.disconnect(&[reachable]).await.unwrap();
    assert_eq!(make(&stores, &new_call()).await.state, CallState::Failed, "nobody who lives is there");
    until(async || stores.calls.advance(MANY).await.unwrap(), |report| report.ended == 1).await;
    let after_a_move = async || {
        stores.calls.advance(MANY).await.unwrap();
        offered(&stores).await
    };
    assert_eq!(until(after_a_move, Vec::is_empty).await, [], "the other one waits for a connection");
    let failed = found(&stores, call.id).await;
    assert_eq!((failed.state, failed.error), (CallState::Failed, Some(no_responder())));
    assert_eq!(found(&stores, patient.id).await.state, CallState::Offered);
    let back = open(&stores, &live, &user("ann")).await;
    let pending = stores.calls.pending(&user("ann"), back).await.unwrap();
    assert_eq!(pending.iter().map(|offered| offered.offer.call_id).collect::<Vec<_>>(), [patient.id]);
}

pub(crate) async fn the_first_claim_has_the_call(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let instance = replica(&stores, LONG).await;
    let first = open(&stores, &instance, &user("ann")).await;
    let second = open(&stores, &instance, &user("ann")).await;
    let call = new_call();
    make(&stores, &call).await;
    let offer = offered(&stores).await;
    assert_eq!(offer[0].1, second);
    for (stranger, id) in [(user("bob"), call.id), (user("ann"), CallId::new())] {
        let outcome = stores.calls.claim(&stranger, id, first).await.unwrap();
        assert_eq!(outcome, ClaimOutcome::NotFound);
    }
    let token = claim(&stores, call.id, first).await;
    assert_eq!(claim(&stores, call.id, first).await, token, "the answer may have been lost");
    assert_eq!(stores.calls.claim(&user("ann"), call.id, second).await.unwrap(), ClaimOutcome::Conflict);
    let claimed = found(&stores, call.id).await;
    assert_eq!((claimed.state, claimed.claimed_by), (CallState::Claimed, Some(first)));
    assert_eq!(offered(&stores).await, [], "nobody else is asked");
    wait_past(&stores, offer[0].2).await;
    assert_eq!(stores.calls.advance(MANY).await.unwrap(), AdvanceReport::default());
    assert_eq!(found(&stores, call.id).await, claimed);
}

pub(crate) async fn an_answer_is_taken_once_from_the_holder_of_the_token(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let instance = replica(&stores, LONG).await;
    let connection = open(&stores, &instance, &user("ann")).await;
    let call = new_call();
    make(&stores, &call).await;
    let reply = async |who: &str, token, answer| stores.calls.reply(&user(who), call.id, token, &answer).await.unwrap();
    assert_eq!(reply("ann", ClaimToken::new(), done()).await, ReplyOutcome::Conflict, "nobody has claimed it");
    let token = claim(&stores, call.id, connection).await;
    assert_eq!(reply("ann", ClaimToken::new(), done()).await, ReplyOutcome::Conflict);
    assert_eq!(reply("bob", token, done()).await, ReplyOutcome::NotFound);
    let unknown = stores.calls.reply(&user("ann"), CallId::new(), token, &done()).await.unwrap();
    assert_eq!(unknown, ReplyOutcome::NotFound);
    let mut reader = Reader::start(&stores).await;
    assert_eq!(reply("ann", token, done()).await, ReplyOutcome::Accepted);
    assert_eq!(reader.changes().await, [(SignalKind::CallEnded, call.id.to_string())]);
    let ended = found(&stores, call.id).await;
    assert_eq!((ended.state, ended.claimed_by), (CallState::Done, Some(connection)));
    assert_eq!(ended.result.as_ref().unwrap().as_str(), r#"{"ok" : 1}"#);
    assert!(ended.error.is_none() && ended.ended_at.unwrap() >= ended.created_at);
    assert_eq!(reply("ann", token, CallAnswer::Done(json("2"))).await, ReplyOutcome::Conflict);
    assert_eq!(stores.calls.claim(&user("ann"), call.id, connection).await.unwrap(), ClaimOutcome::Conflict);
    assert_eq!(found(&stores, call.id).await, ended);
}

pub(crate) async fn a_client_can_answer_that_it_could_not(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let instance = replica(&stores, LONG).await;
    let connection = open(&stores, &instance, &user("ann")).await;
    let call = new_call();
    make(&stores, &call).await;
    let token = claim(&stores, call.id, connection).await;
    let error = ReplyError::new(ErrorCode::CallFailed, "no \0 camera");
    let answer = CallAnswer::Failed(error.clone());
    assert_eq!(stores.calls.reply(&user("ann"), call.id, token, &answer).await.unwrap(), ReplyOutcome::Accepted);
    let ended = found(&stores, call.id).await;
    assert_eq!((ended.state, ended.result, ended.error), (CallState::Failed, None, Some(error)));
}

pub(crate) async fn a_call_expires_at_its_deadline(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let instance = replica(&stores, LONG).await;
    let connection = open(&stores, &instance, &user("ann")).await;
    let held = NewCall { timeout: Span::from_secs(3), ..new_call() };
    make(&stores, &held).await;
    let token = claim(&stores, held.id, connection).await;
    let short = NewCall { timeout: SHORT, ..new_call() };
    make(&stores, &short).await;
    let absent = NewCall { timeout: SHORT, user_id: user("bob"), ..waiting_call() };
    make(&stores, &absent).await;
    wait_past(&stores, found(&stores, held.id).await.deadline_at).await;
    // What is over counts as over, also before anybody has said so.
    assert_eq!(offered(&stores).await, []);
    assert_eq!(stores.calls.pending(&user("ann"), connection).await.unwrap(), []);
    assert_eq!(stores.calls.claim(&user("ann"), short.id, connection).await.unwrap(), ClaimOutcome::Conflict);
    let late = stores.calls.reply(&user("ann"), held.id, token, &done()).await.unwrap();
    assert_eq!(late, ReplyOutcome::Conflict);
    let mut reader = Reader::start(&stores).await;
    assert_eq!(stores.calls.advance(MANY).await.unwrap(), AdvanceReport { offered: 0, ended: 3, more: false });
    let mut ids = [held.id, short.id, absent.id].map(|id| (SignalKind::CallEnded, id.to_string()));
    ids.sort();
    assert_eq!(reader.changes().await, ids);
    for id in [held.id, short.id, absent.id] {
        let ended = found(&stores, id).await;
        assert_eq!((ended.state, ended.error), (CallState::Expired, Some(call_timeout())));
        assert!(ended.ended_at.unwrap() >= ended.deadline_at);
    }
    assert_eq!(stores.calls.advance(MANY).await.unwrap(), AdvanceReport::default());
}

pub(crate) async fn a_batch_moves_no_more_than_it_is_asked(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let mut last = database_time(&stores).await;
    for _ in 0..5 {
        last = make(&stores, &NewCall { timeout: SHORT, ..waiting_call() }).await.deadline_at;
    }
    wait_past(&stores, last).await;
    for (ended, more) in [(2, true), (2, true), (1, false)] {
        assert_eq!(stores.calls.advance(2).await.unwrap(), AdvanceReport { offered: 0, ended, more });
    }
}

pub(crate) async fn a_repeated_request_for_a_call_is_replayed(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let call = waiting_call();
    let context = once("k", 1, HOUR);
    now(stores.calls.create(&context, &call).await.unwrap());
    let again = waiting_call();
    assert_eq!(stores.calls.create(&context, &again).await.unwrap(), replayed(call.id.as_uuid()));
    assert_eq!(stores.calls.find(again.id).await.unwrap(), None);
}

pub(crate) async fn next_due_names_the_offer_and_then_the_deadline(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let next = async || stores.feed.tick(None, &TickRequest::default()).await.unwrap().next.call;
    let instance = replica(&stores, LONG).await;
    let connection = open(&stores, &instance, &user("ann")).await;
    assert_eq!(next().await, None);
    let made = make(&stores, &new_call()).await;
    assert_eq!(next().await, Some(made.created_at + OFFER_TIME.to_delta()));
    let token = claim(&stores, made.id, connection).await;
    assert_eq!(next().await, Some(made.deadline_at));
    stores.calls.reply(&user("ann"), made.id, token, &done()).await.unwrap();
    assert_eq!(next().await, None);
}

pub(crate) async fn a_new_connection_learns_of_what_nobody_has_claimed(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let instance = replica(&stores, LONG).await;
    let first = open(&stores, &instance, &user("ann")).await;
    let claimed = new_call();
    make(&stores, &claimed).await;
    claim(&stores, claimed.id, first).await;
    let mut ids = Vec::new();
    for _ in 0..=PENDING_CALLS {
        let call = new_call();
        make(&stores, &call).await;
        ids.push(call.id);
    }
    make(&stores, &NewCall { user_id: user("bob"), ..waiting_call() }).await;
    let second = open(&stores, &instance, &user("ann")).await;
    let pending = stores.calls.pending(&user("ann"), second).await.unwrap();
    let listed: Vec<_> = pending.iter().map(|offered| offered.offer.call_id).collect();
    assert_eq!(listed, ids[..PENDING_CALLS as usize]);
    assert!(pending.iter().all(|offered| offered.connection == first), "what is offered to another stays there");
    claim(&stores, ids[0], second).await;
}

pub(crate) async fn calls_that_ended_are_forgotten_after_their_time(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let mut ended = Vec::new();
    for _ in 0..3 {
        ended.push(make(&stores, &new_call()).await.id);
    }
    let open = make(&stores, &waiting_call()).await;
    assert_eq!(stores.calls.sweep(LONG, MANY).await.unwrap(), 0, "not old enough");
    wait_past(&stores, found(&stores, ended[2]).await.ended_at.unwrap()).await;
    for expected in [2, 1, 0] {
        assert_eq!(stores.calls.sweep(Span::default(), 2).await.unwrap(), expected);
    }
    assert_eq!(stores.calls.find(ended[0]).await.unwrap(), None);
    assert_eq!(found(&stores, open.id).await, open);
}

pub(crate) async fn the_offers_of_one_user_are_bounded_and_hide_no_other(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let instance = replica(&stores, LONG).await;
    for who in ["ann", "bob"] {
        open(&stores, &instance, &user(who)).await;
    }
    let mut oldest = Vec::new();
    for n in 0..=STANDING_OFFERS {
        let made = make(&stores, &new_call()).await.id;
        oldest.extend((n < STANDING_OFFERS).then_some(made));
    }
    let of_bob = make(&stores, &NewCall { user_id: user("bob"), ..new_call() }).await.id;
    let told: Vec<CallId> = until(
        async || stores.calls.offers(&[user("ann"), user("bob")]).await.unwrap(),
        |offers| offers.len() > STANDING_OFFERS as usize,
    )
    .await
    .into_iter()
    .map(|offered| offered.offer.call_id)
    .collect();
    oldest.push(of_bob);
    assert_eq!(told, oldest, "the oldest of each, by the time of their making");
}
