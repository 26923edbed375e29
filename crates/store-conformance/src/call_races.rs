//! Races about calls: one claim, one answer, one move, and nobody is missed.

use std::collections::BTreeSet;

use switchboard_model::call::{CallAnswer, CallState, NewCall};
use switchboard_model::ids::ConnectionId;
use switchboard_store_api::{ClaimOutcome, ReplyOutcome};

use crate::Backend;
use crate::accounts::user;
use crate::calls::{MANY, claim, make, new_call, offered, open, replica, waiting_call};
use crate::fixtures::{LONG, contend, eventually, json, replicas, together, wait_past};

pub(crate) async fn parallel_claims_have_one_winner(backend: &dyn Backend) {
    let stores = replicas(backend, 4).await;
    let instance = replica(&stores[0], LONG).await;
    open(&stores[0], &instance, &user("ann")).await;
    let call = make(&stores[0], &new_call()).await.id;
    let outcomes = contend(&stores, 20, |stores, _| async move {
        let connection = ConnectionId::new();
        (connection, stores.calls.claim(&user("ann"), call, connection).await.unwrap())
    })
    .await;
    let winners: Vec<_> = outcomes.iter().filter(|(_, outcome)| matches!(outcome, ClaimOutcome::Claimed(_))).collect();
    assert_eq!(winners.len(), 1, "{outcomes:?}");
    let losers = outcomes.iter().filter(|(_, outcome)| *outcome == ClaimOutcome::Conflict).count();
    assert_eq!(losers, 19);
    let stored = stores[1].calls.find(call).await.unwrap().unwrap();
    assert_eq!((stored.state, stored.claimed_by), (CallState::Claimed, Some(winners[0].0)));
}

pub(crate) async fn parallel_claims_of_one_connection_get_one_token(backend: &dyn Backend) {
    let stores = replicas(backend, 4).await;
    let instance = replica(&stores[0], LONG).await;
    let connection = open(&stores[0], &instance, &user("ann")).await;
    let call = make(&stores[0], &new_call()).await.id;
    let tokens = contend(&stores, 20, |stores, _| async move { claim(&stores, call, connection).await }).await;
    assert_eq!(tokens.into_iter().collect::<BTreeSet<_>>().len(), 1);
}

pub(crate) async fn parallel_answers_count_once(backend: &dyn Backend) {
    let stores = replicas(backend, 4).await;
    let instance = replica(&stores[0], LONG).await;
    let connection = open(&stores[0], &instance, &user("ann")).await;
    let call = make(&stores[0], &new_call()).await.id;
    let token = claim(&stores[0], call, connection).await;
    let outcomes = contend(&stores, 20, |stores, n| async move {
        let answer = CallAnswer::Done(json(&n.to_string()));
        (n, stores.calls.reply(&user("ann"), call, token, &answer).await.unwrap())
    })
    .await;
    let accepted: Vec<_> = outcomes.iter().filter(|(_, outcome)| *outcome == ReplyOutcome::Accepted).collect();
    assert_eq!(accepted.len(), 1, "{outcomes:?}");
    assert_eq!(outcomes.iter().filter(|(_, outcome)| *outcome == ReplyOutcome::Conflict).count(), 19);
    let stored = stores[1].calls.find(call).await.unwrap().unwrap();
    assert_eq!(stored.result.unwrap().as_str(), accepted[0].0.to_string());
}

pub(crate) async fn replicas_move_an_offer_once(backend: &dyn Backend) {
    let stores = replicas(backend, 4).await;
    let instance = replica(&stores[0], LONG).await;
    let older = open(&stores[0], &instance, &user("ann")).await;
    open(&stores[0], &instance, &user("ann")).await;
    let mut calls = BTreeSet::new();
    for _ in 0..10 {
        calls.insert(make(&stores[0], &new_call()).await.id);
    }
    let last = offered(&stores[0]).await.into_iter().map(|(_, _, until)| until).max().unwrap();
    wait_past(&stores[0], last).await;
    let reports =
        contend(&stores, 20, |stores, _| async move { stores.calls.advance(MANY).await.unwrap().offered }).await;
    assert_eq!(reports.iter().sum::<u64>(), 10, "{reports:?}");
    let offers = offered(&stores[1]).await;
    assert!(offers.iter().all(|(_, connection, _)| *connection == older));
    assert_eq!(offers.into_iter().map(|(call, ..)| call).collect::<BTreeSet<_>>(), calls);
}

pub(crate) async fn a_claim_and_a_move_at_the_same_time_agree(backend: &dyn Backend) {
    let stores = replicas(backend, 4).await;
    let instance = replica(&stores[0], LONG).await;
    let connection = open(&stores[0], &instance, &user("ann")).await;
    open(&stores[0], &instance, &user("ann")).await;
    let call = make(&stores[0], &new_call()).await.id;
    wait_past(&stores[0], offered(&stores[0]).await[0].2).await;
    contend(&stores, 12, |stores, n| async move {
        if n < 4 {
            claim(&stores, call, connection).await;
        } else {
            stores.calls.advance(MANY).await.unwrap();
        }
    })
    .await;
    assert_eq!(offered(&stores[0]).await, [], "what is claimed is offered to nobody");
    let stored = stores[0].calls.find(call).await.unwrap().unwrap();
    assert_eq!((stored.state, stored.claimed_by), (CallState::Claimed, Some(connection)));
}

pub(crate) async fn a_call_that_waits_does_not_miss_who_comes_at_the_same_time(backend: &dyn Backend) {
    let stores = replicas(backend, 4).await;
    let instance = replica(&stores[0], LONG).await;
    together((0..20).map(|n| {
        let (caller, answerer) = (stores[n % 4].clone(), stores[(n + 1) % 4].clone());
        let instance = instance.clone();
        async move {
            let who = user(&format!("user-{n}"));
            let call = NewCall { user_id: who.clone(), ..waiting_call() };
            let coming = async {
                let connection = open(&answerer, &instance, &who).await;
                answerer.calls.pending(&who, connection).await.unwrap();
                connection
            };
            let (_, connection) = futures_util::future::join(make(&caller, &call), coming).await;
            eventually(async || {
                caller.calls.advance(MANY).await.unwrap();
                let offers = caller.calls.offers(std::slice::from_ref(&who)).await.unwrap();
                match offers.as_slice() {
                    [offered] if offered.connection == connection => Ok(()),
                    _ => Err(offers),
                }
            })
            .await;
        }
    }))
    .await;
}
