//! Calls: a program asks one client of a user, over any replica, and is answered once.

use std::collections::BTreeSet;
use std::process::Stdio;

use futures_util::future::{join, join_all};
use switchboard_client::{ClientError, ResumeEvent, ResumingSocket, Socket, SocketEvent};
use switchboard_model::call::{Call, CallOffer, CallState, WhenAbsent};
use switchboard_model::identity::UserId;
use switchboard_model::ids::{CallId, ClaimToken};
use switchboard_model::json_text::JsonText;
use switchboard_model::span::Span;
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::frame::NoticeFrame;
use switchboard_model::wire::op::CallFailure;
use switchboard_model::wire::rest::CallRequest;
use switchboard_testkit::{Cluster, Signal, wait_until};

use crate::cli::Cli;
use crate::fixtures::{cluster, err, on_every_database, out};

on_every_database! {
    a_client_answers_what_it_was_asked,
    a_client_that_cannot_says_why,
    nobody_there_is_said_at_once,
    a_call_that_waits_is_answered_by_whoever_comes,
    a_silent_client_leaves_the_call_to_the_next,
    a_call_ends_at_its_deadline,
    an_answer_counts_once_and_from_its_user_only,
    a_repeated_request_is_one_call,
    a_request_that_does_not_wait_is_given_the_open_call,
    a_client_that_comes_back_is_offered_what_waits,
    what_cannot_be_asked_is_refused,
    the_command_prints_the_answer,
}

fn ann() -> UserId {
    "ann".parse().unwrap()
}

fn text(json: &str) -> JsonText {
    JsonText::parse(json).unwrap()
}

fn request() -> CallRequest {
    CallRequest {
        event: "tool.call".parse().unwrap(),
        payload: text(r#"{"n": 1.0e1}"#),
        timeout: None,
        when_absent: WhenAbsent::Fail,
        wait: None,
    }
}

fn patient() -> CallRequest {
    CallRequest { when_absent: WhenAbsent::Wait, ..request() }
}

/// A request that only makes the call.
fn open() -> CallRequest {
    CallRequest { wait: Some(Span::default()), ..request() }
}

/// Waits until a socket is offered a call.
async fn next_offer(socket: &mut Socket) -> CallOffer {
    loop {
        match socket.next().await {
            Some(SocketEvent::Notice(NoticeFrame::Call(offer))) => return offer,
            Some(SocketEvent::Closed { code, reason }) => panic!("closed: {code} {reason}"),
            Some(_) => {}
            None => panic!("the socket ended"),
        }
    }
}

/// Takes the next call that a socket is offered, and answers it.
async fn answer_next(socket: &mut Socket, answer: Result<JsonText, CallFailure>) -> CallOffer {
    let offer = next_offer(socket).await;
    let token = socket.claim(offer.call_id).await.unwrap();
    socket.reply(offer.call_id, token, answer).await.unwrap();
    offer
}

/// Opens a socket of ann on the replica that is not the one that is asked, if there are two.
async fn elsewhere(cluster: &Cluster) -> Socket {
    cluster.socket(cluster.size() - 1, "ann").await
}

async fn a_client_answers_what_it_was_asked(cluster: Cluster) {
    let mut socket = elsewhere(&cluster).await;
    let answer = r#"{"pong" : [1.0e1, "\ud800"]}"#;
    let (user, request) = (ann(), request());
    let (call, offer) = join(cluster.client(0).call(&user, &request), answer_next(&mut socket, Ok(text(answer)))).await;
    let call = call.unwrap();
    assert_eq!((offer.call_id, offer.event, offer.payload.as_str()), (call.id, request.event, r#"{"n": 1.0e1}"#));
    assert!(offer.deadline_ms <= 30_000, "{}", offer.deadline_ms);
    assert_eq!((call.state, call.claimed_by), (CallState::Done, Some(socket.hello().conn_id)));
    assert_eq!(call.result.as_ref().unwrap().as_str(), answer);
    assert_eq!((&call.error, call.ended_at.is_some()), (&None, true));
    for index in 0..cluster.size() {
        assert_eq!(cluster.client(index).get_call(call.id).await.unwrap(), call);
    }
}

async fn a_client_that_cannot_says_why(cluster: Cluster) {
    let mut socket = elsewhere(&cluster).await;
    let failure = CallFailure { message: "the camera is off".to_owned() };
    let (user, request) = (ann(), request());
    let (call, _) = join(cluster.client(0).call(&user, &request), answer_next(&mut socket, Err(failure))).await;
    let call = call.unwrap();
    let error = call.error.unwrap();
    assert_eq!((call.state, call.result), (CallState::Failed, None));
    assert_eq!((error.code, error.message.as_str()), (ErrorCode::CallFailed, "the camera is off"));
}

async fn nobody_there_is_said_at_once(cluster: Cluster) {
    let _other = cluster.socket(0, "bob").await;
    let error = cluster.any().call(&ann(), &request()).await.unwrap_err();
    assert_eq!((error.code(), error.status()), (Some(ErrorCode::NoResponder), Some(404)));
    // A socket that is gone counts no longer.
    drop(elsewhere(&cluster).await);
    wait_until("the end of the socket", async || match cluster.client(0).call(&ann(), &open()).await {
        Err(error) if error.code() == Some(ErrorCode::NoResponder) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
}

async fn a_call_that_waits_is_answered_by_whoever_comes(cluster: Cluster) {
    let made = cluster.client(0).call(&ann(), &CallRequest { wait: open().wait, ..patient() }).await.unwrap();
    assert_eq!(made.state, CallState::Offered);
    let socket = elsewhere(&cluster).await;
    let [offer] = socket.hello().pending_calls.as_slice() else { panic!("{:?}", socket.hello()) };
    assert_eq!((offer.call_id, &offer.payload), (made.id, &made.payload));
    let token = socket.claim(made.id).await.unwrap();
    let (ended, replied) = join(
        cluster.client(0).wait_for_call(made.id, Span::from_secs(20)),
        socket.reply(made.id, token, Ok(text("7"))),
    )
    .await;
    replied.unwrap();
    assert_eq!(ended.unwrap().result.unwrap().as_str(), "7");
}

async fn a_silent_client_leaves_the_call_to_the_next(cluster: Cluster) {
    let mut older = cluster.socket(0, "ann").await;
    let mut silent = elsewhere(&cluster).await;
    let (user, request) = (ann(), request());
    let clients = async {
        let first = next_offer(&mut silent).await;
        let second = answer_next(&mut older, Ok(text("1"))).await;
        assert_eq!(first.call_id, second.call_id);
    };
    let (call, ()) = join(cluster.client(0).call(&user, &request), clients).await;
    assert_eq!(call.unwrap().claimed_by, Some(older.hello().conn_id));
}

async fn a_call_ends_at_its_deadline(cluster: Cluster) {
    let mut socket = elsewhere(&cluster).await;
    let (user, request) = (ann(), CallRequest { timeout: Some(Span::from_secs(1)), ..request() });
    let (failed, offer) = join(cluster.client(0).call(&user, &request), next_offer(&mut socket)).await;
    let failed = failed.unwrap_err();
    assert_eq!((failed.code(), failed.status()), (Some(ErrorCode::CallTimeout), Some(504)));
    let late = socket.claim(offer.call_id).await.unwrap_err();
    assert_eq!(late.code(), Some(ErrorCode::CallConflict));
    let call = cluster.any().wait_for_call(offer.call_id, Span::from_secs(20)).await.unwrap();
    assert_eq!((call.state, call.error.unwrap().code), (CallState::Expired, ErrorCode::CallTimeout));
}

async fn an_answer_counts_once_and_from_its_user_only(cluster: Cluster) {
    let socket = elsewhere(&cluster).await;
    let other_tab = cluster.socket(0, "ann").await;
    let stranger = cluster.socket(0, "bob").await;
    let call = cluster.any().call(&ann(), &open()).await.unwrap().id;
    assert_eq!(stranger.claim(call).await.unwrap_err().code(), Some(ErrorCode::NotFound));
    let token = socket.claim(call).await.unwrap();
    assert_eq!(socket.claim(call).await.unwrap(), token, "the answer may have been lost");
    assert_eq!(other_tab.claim(call).await.unwrap_err().code(), Some(ErrorCode::CallConflict));
    let refused =
        async |socket: &Socket, token| socket.reply(call, token, Ok(JsonText::null())).await.unwrap_err().code();
    assert_eq!(refused(&stranger, token).await, Some(ErrorCode::NotFound));
    assert_eq!(refused(&socket, ClaimToken::new()).await, Some(ErrorCode::CallConflict));
    let huge = text(&format!("\"{}\"", "x".repeat(60 * 1024)));
    let refusal = socket.reply(call, token, Ok(huge)).await.unwrap_err();
    assert_eq!(refusal.code(), Some(ErrorCode::PayloadTooLarge));
    // Over another replica than the one of the claim, where there are two.
    other_tab.reply(call, token, Ok(text("1"))).await.unwrap();
    assert_eq!(refused(&socket, token).await, Some(ErrorCode::CallConflict));
    assert_eq!(cluster.any().get_call(call).await.unwrap().result.unwrap().as_str(), "1");
    let nothing = socket.claim(CallId::new()).await.unwrap_err();
    assert_eq!(nothing.code(), Some(ErrorCode::NotFound));
}

async fn a_repeated_request_is_one_call(cluster: Cluster) {
    let mut socket = elsewhere(&cluster).await;
    let client = cluster.client(0).with_idempotency_key("k-1".parse().unwrap());
    let again = client.at(cluster.client(cluster.size() - 1).base_url()).unwrap();
    let (user, request) = (ann(), request());
    let calls = join(client.call(&user, &request), again.call(&user, &request));
    let ((first, second), _) = join(calls, answer_next(&mut socket, Ok(text("1")))).await;
    let (first, second) = (first.unwrap(), second.unwrap());
    assert_eq!(first, second);
    assert_eq!(again.call(&user, &request).await.unwrap(), first);
    let other = again.call(&user, &patient()).await.unwrap_err();
    assert_eq!(other.code(), Some(ErrorCode::IdempotencyMismatch));
}

async fn a_request_that_does_not_wait_is_given_the_open_call(cluster: Cluster) {
    let mut socket = elsewhere(&cluster).await;
    let call = cluster.client(0).call(&ann(), &open()).await.unwrap();
    assert_eq!((call.state, &call.result), (CallState::Offered, &None));
    let (ended, _) =
        join(cluster.any().wait_for_call(call.id, Span::from_secs(20)), answer_next(&mut socket, Ok(text("[]")))).await;
    assert_eq!(ended.unwrap().state, CallState::Done);
    let unknown = cluster.any().get_call(CallId::new()).await.unwrap_err();
    assert_eq!(unknown.code(), Some(ErrorCode::NotFound));
}

/// Waits until a resuming socket is offered a call.
async fn next_resumed_offer(socket: &mut ResumingSocket) -> CallOffer {
    loop {
        match socket.next().await {
            Some(ResumeEvent::Call(offer)) => return offer,
            Some(ResumeEvent::Stopped(cause)) => panic!("stopped: {cause:?}"),
            Some(_) => {}
            None => panic!("the socket ended"),
        }
    }
}

async fn a_client_that_comes_back_is_offered_what_waits(cluster: Cluster) {
    let mut socket = cluster.resuming_socket("ann");
    let made = cluster.any().call(&ann(), &CallRequest { wait: open().wait, ..patient() }).await.unwrap();
    assert_eq!(next_resumed_offer(&mut socket).await.call_id, made.id);
    socket.reconnect().await.unwrap();
    assert_eq!(next_resumed_offer(&mut socket).await.call_id, made.id, "it is still free");
    let token = socket.claim(made.id).await.unwrap();
    assert_eq!(socket.claim(made.id).await.unwrap_err().code(), Some(ErrorCode::CallConflict));
    socket.reconnect().await.unwrap();
    while !matches!(socket.next().await.unwrap(), ResumeEvent::Connected { .. }) {}
    // Over a connection that did not claim it.
    socket.reply(made.id, token, Ok(text("2"))).await.unwrap();
    assert_eq!(cluster.any().get_call(made.id).await.unwrap().result.unwrap().as_str(), "2");
    let last = cluster.any().call(&ann(), &open()).await.unwrap();
    assert_eq!(next_resumed_offer(&mut socket).await.call_id, last.id, "what was claimed is not offered again");
}

async fn what_cannot_be_asked_is_refused(cluster: Cluster) {
    let _socket = elsewhere(&cluster).await;
    let refused = async |request: CallRequest| cluster.any().call(&ann(), &request).await.unwrap_err().code();
    let invalid = Some(ErrorCode::ValidationFailed);
    assert_eq!(refused(CallRequest { event: "sb.x".parse().unwrap(), ..request() }).await, invalid);
    assert_eq!(refused(CallRequest { timeout: Some(Span::default()), ..request() }).await, invalid);
    assert_eq!(refused(CallRequest { timeout: Some(Span::from_secs(301)), ..request() }).await, invalid);
    assert_eq!(refused(CallRequest { wait: Some(Span::from_secs(3600)), ..request() }).await, invalid);
    let payload = text(&format!("\"{}\"", "x".repeat(60 * 1024)));
    assert_eq!(refused(CallRequest { payload, ..request() }).await, Some(ErrorCode::PayloadTooLarge));
}

async fn the_command_prints_the_answer(cluster: Cluster) {
    let cli = Cli::of(&cluster);
    let error = cli.fails(&["call", "ann", "tool.call"]);
    assert!(error.contains("no client of the user is connected"), "{error}");
    let mut socket = elsewhere(&cluster).await;
    let started =
        |arguments: &[&str]| cli.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let child = started(&["call", "ann", "tool.call", r#"{"a":1}"#, "--timeout", "20s"]);
    let offer = answer_next(&mut socket, Ok(text("[1, 2]"))).await;
    assert_eq!(offer.payload.as_str(), r#"{"a":1}"#);
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), out(&output).as_str()), (Some(0), "[1, 2]\n"), "{}", err(&output));

    let child = started(&["call", "ann", "tool.call", "--json"]);
    answer_next(&mut socket, Err(CallFailure { message: "no camera".to_owned() })).await;
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let shown: serde_json::Value = serde_json::from_str(&out(&output)).unwrap();
    assert_eq!((&shown["state"], &shown["error"]["code"]), (&"failed".into(), &"call_failed".into()));
    assert!(err(&output).contains("no camera"), "{}", err(&output));

    let child = started(&["call", "zoe", "tool.call", "--wait-for-user"]);
    let call_id = wait_until("the waiting call", async || {
        let socket = cluster.socket(0, "zoe").await;
        let offer = socket.hello().pending_calls.first()?.call_id;
        let token = socket.claim(offer).await.ok()?;
        socket.reply(offer, token, Ok(JsonText::null())).await.ok().map(|()| offer)
    })
    .await;
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), out(&output).as_str()), (Some(0), "null\n"), "{call_id}: {}", err(&output));
}

#[tokio::test(flavor = "multi_thread")]
async fn three_tabs_on_two_replicas_execute_once() {
    let cluster = cluster(2).await;
    let tabs = join_all([0, 1, 0].map(|replica| cluster.socket(replica, "ann"))).await;
    for n in 0..5 {
        let call = cluster.client(n % 2).call(&ann(), &open()).await.unwrap().id;
        let claims = join_all(tabs.iter().map(|tab| tab.claim(call))).await;
        let executing: Vec<_> = tabs.iter().zip(claims).filter_map(|(tab, claim)| Some((tab, claim.ok()?))).collect();
        let [(tab, token)] = executing.as_slice() else { panic!("{} tabs execute", executing.len()) };
        tab.reply(call, *token, Ok(text("1"))).await.unwrap();
        let ended = cluster.any().get_call(call).await.unwrap();
        assert_eq!((ended.state, ended.claimed_by), (CallState::Done, Some(tab.hello().conn_id)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_outlives_the_replica_that_asked() {
    let mut cluster = cluster(2).await;
    let mut socket = cluster.socket(1, "ann").await;
    let (asker, user, request) = (cluster.client(0).clone(), ann(), request());
    let executing = async {
        let offer = next_offer(&mut socket).await;
        let token = socket.claim(offer.call_id).await.unwrap();
        cluster.kill(0, Signal::SIGKILL);
        socket.reply(offer.call_id, token, Ok(text(r#""still here""#))).await.unwrap();
        offer.call_id
    };
    let (asked, call) = join(asker.call(&user, &request), executing).await;
    assert!(matches!(asked, Err(ClientError::Transport(_))), "{asked:?}");
    let ended = cluster.client(1).get_call(call).await.unwrap();
    assert_eq!((ended.state, ended.result.unwrap().as_str()), (CallState::Done, r#""still here""#));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_a_dead_replica_is_passed_over() {
    let mut cluster = cluster(2).await;
    let mut older = cluster.socket(1, "ann").await;
    let _gone = cluster.socket(0, "ann").await;
    let (asker, user, request) = (cluster.client(1).clone(), ann(), request());
    cluster.kill(0, Signal::SIGKILL);
    let (call, _) = join(asker.call(&user, &request), answer_next(&mut older, Ok(text("1")))).await;
    assert_eq!(call.unwrap().state, CallState::Done);
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_need_no_hints() {
    let cluster = cluster(2).polling().await;
    a_client_answers_what_it_was_asked(cluster).await;
    let cluster = crate::fixtures::cluster(2).polling().await;
    a_silent_client_leaves_the_call_to_the_next(cluster).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_calls_at_once_are_each_answered_once() {
    let cluster = cluster(2).await;
    let mut socket = cluster.socket(1, "ann").await;
    let (user, request) = (ann(), request());
    let asking = join_all((0..40).map(|n| cluster.client(n % 2).call(&user, &request)));
    let answering = async {
        let mut answered = BTreeSet::new();
        while answered.len() < 40 {
            let offer = next_offer(&mut socket).await;
            if answered.insert(offer.call_id) {
                let token = socket.claim(offer.call_id).await.unwrap();
                socket.reply(offer.call_id, token, Ok(text(&format!("\"{}\"", offer.call_id)))).await.unwrap();
            }
        }
        answered
    };
    let (calls, answered) = join(asking, answering).await;
    let calls: Vec<Call> = calls.into_iter().map(Result::unwrap).collect();
    assert!(calls.iter().all(|call| call.result.as_ref().unwrap().as_str() == format!("\"{}\"", call.id)));
    assert_eq!(calls.iter().map(|call| call.id).collect::<BTreeSet<_>>(), answered);
}
