//! Calls: asked through any replica, offered to two sockets of each user, executed by one of them, answered once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use switchboard_client::{OpError, ResumeEvent, ResumingHandle, ResumingSocket};
use switchboard_model::call::{Call, CallState, WhenAbsent};
use switchboard_model::identity::UserId;
use switchboard_model::ids::CallId;
use switchboard_model::json_text::JsonText;
use switchboard_model::span::Span;
use switchboard_model::wire::rest::CallRequest;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::fleet::{Fleet, LONG};
use super::{Ledger, Workload};
use crate::cluster::resuming;
use crate::ledger::Loss;
use crate::must::Must as _;

/// How many users there are, each with two sockets.
const USERS: usize = 3;

/// How often somebody is called, and how long they have.
const PERIOD: Duration = Duration::from_millis(400);
const TIMEOUT: Span = Span::from_secs(20);

/// How long a socket may take for one step of an answer before it is given up.
const STEP: Duration = Duration::from_secs(15);

/// How long to pause between two looks.
const PAUSE: Duration = Duration::from_millis(200);

/// What was executed for each call.
type Executions = Arc<Mutex<BTreeMap<CallId, Vec<String>>>>;

/// The sockets that answer, what they have executed, and what was asked for.
#[derive(Default)]
pub(crate) struct Calls {
    sockets: JoinSet<()>,
    executions: Executions,
    asked_for: BTreeSet<CallId>,
    violations: Vec<String>,
}

fn user(number: usize) -> UserId {
    format!("called{number}").parse().must("a user id")
}

#[async_trait]
impl Workload for Calls {
    fn name(&self) -> &'static str {
        "calls"
    }

    async fn start(&mut self, fleet: &Fleet) {
        for number in 0..USERS {
            for tab in 0..2 {
                let socket = resuming(&fleet.replicas()[0], fleet.urls(), user(number).as_str());
                self.sockets.spawn(answer(socket, format!("tab {tab}"), Arc::clone(&self.executions)));
            }
        }
    }

    async fn drive(&mut self, fleet: &Fleet, end: &CancellationToken) {
        let mut clock = interval(PERIOD);
        let mut number = 0;
        while end.run_until_cancelled(clock.tick()).await.is_some() {
            number += 1;
            let (called, key) = (user(number % USERS), format!("chaos-{number}"));
            let request = CallRequest {
                event: "tool.call".parse().must("a name"),
                payload: JsonText::encode(&number).must("a payload"),
                timeout: Some(TIMEOUT),
                when_absent: WhenAbsent::Wait,
                wait: Some(Span::default()),
            };
            let asked = fleet.insist(|client| {
                let client = client.with_idempotency_key(key.parse().must("a key"));
                let (called, request) = (called.clone(), request.clone());
                async move { client.call(&called, &request).await }
            });
            match asked.await {
                Ok(call) => _ = self.asked_for.insert(call.id),
                Err(error) => self.violations.push(format!("a call was refused: {error}")),
            }
        }
    }

    async fn check(&mut self, fleet: &Fleet, _: &[Loss]) -> Ledger {
        let mut violations = std::mem::take(&mut self.violations);
        let mut ended = Vec::new();
        for id in &self.asked_for {
            match end_of(fleet, *id).await {
                Ok(call) => ended.push(call),
                Err(fault) => violations.push(fault),
            }
        }
        self.sockets.shutdown().await;
        let executions = self.executions.lock().unwrap_or_else(PoisonError::into_inner);
        violations.extend(ended.iter().filter_map(|call| judge(call, executions.get(&call.id))));
        let invented = executions.keys().filter(|id| !self.asked_for.contains(id));
        violations.extend(invented.map(|id| format!("call {id} was executed and never asked for")));
        let count = |state| ended.iter().filter(|call| call.state == state).count();
        let (done, failed, expired) = (count(CallState::Done), count(CallState::Failed), count(CallState::Expired));
        if done == 0 {
            violations.push("no call was answered".to_owned());
        }
        Ledger { done: format!("{done} calls answered, {failed} failed, {expired} expired"), violations }
    }
}

/// Answers what a socket is offered, until its task is ended.
async fn answer(mut socket: ResumingSocket, name: String, executions: Executions) {
    while let Some(event) = socket.next().await {
        let ResumeEvent::Call(offer) = event else { continue };
        // Another tab was faster, or whether this one has the call is unknown: then it must not execute it.
        let Ok(Ok(token)) = timeout(STEP, socket.claim(offer.call_id)).await else { continue };
        let result = format!("{} by {name}", offer.call_id);
        executions
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(offer.call_id)
            .or_default()
            .push(result.clone());
        let result = JsonText::encode(&result).must("a result");
        // A lost answer is given again until it has arrived or comes too late.
        let _ = timeout(STEP, insist(&socket, offer.call_id, token, result)).await;
    }
}

async fn insist(socket: &ResumingHandle, call: CallId, token: switchboard_model::ids::ClaimToken, result: JsonText) {
    while let Err(OpError::Closed | OpError::TimedOut) = socket.reply(call, token, Ok(result.clone())).await {
        sleep(PAUSE).await;
    }
}

async fn end_of(fleet: &Fleet, id: CallId) -> Result<Call, String> {
    let give_up = Instant::now() + LONG;
    loop {
        let call = fleet.insist(|client| async move { client.get_call(id).await }).await;
        match call.map_err(|error| format!("call {id}: {error}"))? {
            call if call.state.is_terminal() => return Ok(call),
            call if Instant::now() >= give_up => return Err(format!("call {id} is still {}", call.state.as_str())),
            _ => sleep(PAUSE).await,
        }
    }
}

/// Says what is wrong with a call that has ended.
fn judge(call: &Call, executions: Option<&Vec<String>>) -> Option<String> {
    let executions = executions.map_or(&[][..], Vec::as_slice);
    if executions.len() > 1 {
        return Some(format!("call {} was executed {} times", call.id, executions.len()));
    }
    if call.state != CallState::Done {
        return None;
    }
    let result: Option<String> = call.result.as_ref().and_then(|result| result.decode().ok());
    (result.as_ref() != executions.first())
        .then(|| format!("call {} has the result {result:?} and was executed as {executions:?}", call.id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_executed_once_and_has_the_result_of_that() {
        let call = |state: &str, result: Option<&str>| -> Call {
            let call = serde_json::json!({
                "id": CallId::new(), "user_id": "ann", "event": "tool.call", "payload": 1, "sender": "key:k",
                "state": state, "result": result, "created_at": "2027-01-01T00:00:00Z",
                "deadline_at": "2027-01-01T00:00:00Z",
            });
            serde_json::from_str(&call.to_string()).unwrap()
        };
        let by = |tabs: &[&str]| tabs.iter().map(|tab| (*tab).to_owned()).collect::<Vec<_>>();
        assert_eq!(judge(&call("done", Some("a")), Some(&by(&["a"]))), None);
        assert_eq!(judge(&call("expired", None), Some(&by(&["a"]))), None, "the answer came too late");
        assert_eq!(judge(&call("expired", None), None), None);
        assert!(judge(&call("done", Some("a")), Some(&by(&["a", "b"]))).is_some(), "executed twice");
        assert!(judge(&call("done", Some("a")), Some(&by(&["b"]))).is_some(), "another result");
        assert!(judge(&call("done", Some("a")), None).is_some(), "executed by nobody");
    }
}
