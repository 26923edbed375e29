//! Races for names, refresh tokens and the end of users and sessions: one chain of tokens, and nothing that outlives
//! what it hangs on.

use switchboard_model::auth_session::Credential;
use switchboard_model::feed::SignalKind;
use switchboard_model::secret_text::SecretHash;
use switchboard_model::user::{NewUser, UserEdit, UserRole};
use switchboard_store_api::{
    BurnOutcome, PasswordChange, RefreshOutcome, Stores, UserCreateOutcome, UserUpdateOutcome,
};

use crate::Backend;
use crate::accounts::{
    audit_actions, audited, burned, create_user, is_valid, issue, new_session, new_user, phc, refresh, refreshed,
    sessions, sign_in, ticket_of, user,
};
use crate::fixtures::{ALL, LONG, Reader, contend, now, replicas, system};

pub(crate) async fn one_user_gets_a_contended_name(backend: &dyn Backend) {
    let stores = replicas(backend, 4).await;
    let outcomes = contend(&stores, 20, |stores, n| async move {
        let wanted = NewUser { id: user(&format!("u{n}")), ..new_user("wanted") };
        now(stores.users.create(&system(), &wanted).await.unwrap())
    })
    .await;
    let winner = stores[0].users.list(&ALL).await.unwrap().items;
    assert_eq!(winner.len(), 1);
    let taken = UserCreateOutcome::Taken(winner[0].id.clone());
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == taken).count(), 19);
    assert!(outcomes.contains(&UserCreateOutcome::Created(winner[0].clone())));
}

pub(crate) async fn one_of_many_edits_of_a_user_wins(backend: &dyn Backend) {
    let stores = replicas(backend, 4).await;
    let before = create_user(&stores[0], "ann").await;
    let outcomes = contend(&stores, 12, |stores, n| {
        let edit = UserEdit { role: [UserRole::Admin, UserRole::Operator][n % 2], is_disabled: n % 3 == 0 };
        let id = before.id.clone();
        async move { stores.users.update(&system(), &id, 1, &edit).await.unwrap() }
    })
    .await;
    let after = stores[0].users.get(&before.id).await.unwrap().unwrap();
    assert_eq!(after.version, 2);
    let mismatch = UserUpdateOutcome::VersionMismatch(2);
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == mismatch).count(), 11);
    assert!(outcomes.contains(&UserUpdateOutcome::Updated(after)));
}

pub(crate) async fn a_rehash_never_undoes_a_new_password(backend: &dyn Backend) {
    let stores = replicas(backend, 2).await;
    for round in 0..10 {
        let name = format!("u{round}");
        create_user(&stores[0], &name).await;
        contend(&stores, 2, |stores, n| {
            let (id, old) = (user(&name), phc(&name));
            async move {
                match n {
                    0 => stores.users.rehash_password(&id, &old, &phc("stronger")).await.unwrap(),
                    _ => assert!(
                        stores.users.set_password(&system(), &id, &PasswordChange::to(phc("fresh"))).await.unwrap()
                    ),
                }
            }
        })
        .await;
        let login = stores[0].users.find_login(&name.parse().unwrap()).await.unwrap().unwrap();
        assert_eq!(login.password, Some(phc("fresh")));
    }
}

pub(crate) async fn equal_refreshes_keep_one_chain(backend: &dyn Backend) {
    let stores = replicas(backend, 2).await;
    create_user(&stores[0], "ann").await;
    let session = sign_in(&stores[0], "ann", "t1").await;
    issue(&stores[0], &ticket_of("ann", Credential::Session(session.id), "ticket")).await;
    let mut reader = Reader::start(&stores[0]).await;
    let outcomes = contend(&stores, 30, |stores, _| async move { refresh(&stores, "t1", "t2").await }).await;
    for outcome in outcomes {
        let RefreshOutcome::Refreshed(signed_in) = outcome else { panic!("not refreshed: {outcome:?}") };
        assert_eq!(signed_in.session.id, session.id);
    }
    assert_eq!(reader.changes().await, []);
    assert_eq!(sessions(&stores[1], "ann").await.len(), 1);

    let outcomes = contend(&stores, 30, |stores, _| async move { refresh(&stores, "t2", "t3").await }).await;
    assert!(outcomes.iter().all(|outcome| matches!(outcome, RefreshOutcome::Refreshed(_))), "the successor works");
    assert!(matches!(refresh(&stores[0], "t1", "t2").await, RefreshOutcome::Reused(_)), "the old one is used up");
    assert!(!is_valid(&stores[1], session.id).await);
    assert_eq!(burned(&stores[1], &["ticket"]).await, [""; 0]);
    assert_eq!(reader.changes().await, [(SignalKind::SessionRevoked, session.id.to_string())]);
    for token in ["t1", "t2", "t3"] {
        assert_eq!(refresh(&stores[0], token, "t4").await, RefreshOutcome::Invalid);
    }
}

pub(crate) async fn of_many_successors_the_last_one_lives(backend: &dyn Backend) {
    let stores = replicas(backend, 2).await;
    create_user(&stores[0], "ann").await;
    let session = sign_in(&stores[0], "ann", "t1").await;
    let outcomes =
        contend(&stores, 20, |stores, n| async move { refresh(&stores, "t1", &format!("t2.{n}")).await }).await;
    assert!(outcomes.iter().all(|outcome| matches!(outcome, RefreshOutcome::Refreshed(_))));
    let mut living = 0;
    for n in 0..20 {
        match refresh(&stores[0], &format!("t2.{n}"), "t3").await {
            RefreshOutcome::Refreshed(signed_in) => {
                assert_eq!(signed_in.session.id, session.id);
                living += 1;
            }
            other => assert_eq!(other, RefreshOutcome::Invalid),
        }
    }
    assert_eq!(living, 1);
    refreshed(&stores[0], "t3", "t4").await;
}

pub(crate) async fn reuse_ends_a_session_once_whoever_refreshes_it(backend: &dyn Backend) {
    let stores = replicas(backend, 4).await;
    for round in 0..5 {
        let name = format!("u{round}");
        let token = |n: u32| format!("{name} t{n}");
        create_user(&stores[0], &name).await;
        let session = sign_in(&stores[0], &name, &token(1)).await;
        refreshed(&stores[0], &token(1), &token(2)).await;
        refreshed(&stores[0], &token(2), &token(3)).await;
        let mut reader = Reader::start(&stores[0]).await;
        let outcomes = contend(&stores, 20, |stores, n| {
            let (presented, successor) = if n % 2 == 0 { (token(3), token(4)) } else { (token(1), token(2)) };
            let (presented, successor) = (SecretHash::of(&presented), SecretHash::of(&successor));
            async move {
                let context = audited("session.reuse");
                stores.auth_sessions.refresh(&context, presented, successor, LONG).await.unwrap()
            }
        })
        .await;
        let reused = outcomes.iter().filter(|outcome| matches!(outcome, RefreshOutcome::Reused(_))).count();
        assert_eq!(reused, 1, "{outcomes:?}");
        assert_eq!(audit_actions(&stores[0]).await.len(), round + 1);
        assert_eq!(reader.changes().await, [(SignalKind::SessionRevoked, session.id.to_string())]);
        for n in 1..=4 {
            assert_eq!(refresh(&stores[1], &token(n), "next").await, RefreshOutcome::Invalid);
        }
        assert!(!is_valid(&stores[1], session.id).await);
    }
}

pub(crate) async fn a_session_that_was_ended_is_refreshed_no_more(backend: &dyn Backend) {
    let stores = replicas(backend, 2).await;
    create_user(&stores[0], "ann").await;
    for round in 0..10 {
        let token = |n: u32| format!("{round} t{n}");
        let id = sign_in(&stores[0], "ann", &token(1)).await.id;
        contend(&stores, 8, |stores, n| {
            let (first, second) = (token(1), token(2));
            async move {
                match n {
                    3 => assert!(stores.auth_sessions.end(&system(), &user("ann"), id).await.unwrap()),
                    _ => assert!(!matches!(refresh(&stores, &first, &second).await, RefreshOutcome::Reused(_))),
                }
            }
        })
        .await;
        assert!(!is_valid(&stores[1], id).await);
        for n in 1..=2 {
            assert_eq!(refresh(&stores[1], &token(n), "next").await, RefreshOutcome::Invalid);
        }
    }
    assert_eq!(sessions(&stores[0], "ann").await, []);
}

pub(crate) async fn a_new_password_and_refreshes_agree_on_who_is_left(backend: &dyn Backend) {
    let stores = replicas(backend, 2).await;
    for round in 0..5 {
        let name = format!("u{round}");
        create_user(&stores[0], &name).await;
        let kept = sign_in(&stores[0], &name, &format!("{name} kept 1")).await;
        sign_in(&stores[0], &name, &format!("{name} ended 1")).await;
        contend(&stores, 9, |stores, n| {
            let name = name.clone();
            async move {
                let which = ["kept", "ended"][n % 2];
                if n == 4 {
                    let change = PasswordChange { keep: Some(kept.id), ..PasswordChange::to(phc("fresh")) };
                    assert!(stores.users.set_password(&system(), &user(&name), &change).await.unwrap());
                } else {
                    refresh(&stores, &format!("{name} {which} 1"), &format!("{name} {which} 2")).await;
                }
            }
        })
        .await;
        for n in 1..=2 {
            assert_eq!(refresh(&stores[0], &format!("{name} ended {n}"), "next").await, RefreshOutcome::Invalid);
        }
        refreshed(&stores[0], &format!("{name} kept 2"), &format!("{name} kept 3")).await;
        assert_eq!(sessions(&stores[0], &name).await.len(), 1);
    }
}

/// How a user goes.
#[derive(Clone, Copy)]
enum Exit {
    Disabled,
    Deleted,
}

/// Makes a user go.
async fn leave(stores: &Stores, exit: Exit, name: &str) {
    match exit {
        Exit::Disabled => {
            let edit = UserEdit { role: UserRole::User, is_disabled: true };
            let outcome = stores.users.update(&system(), &user(name), 1, &edit).await.unwrap();
            assert!(matches!(outcome, UserUpdateOutcome::Updated(_)), "{outcome:?}");
        }
        Exit::Deleted => assert!(stores.users.delete(&system(), &user(name)).await.unwrap()),
    }
}

/// Signs a user in, refreshes and issues tickets while the user goes; then looks for what is left.
async fn nothing_outlives(stores: &[Stores], exit: Exit, name: &str) {
    create_user(&stores[0], name).await;
    let mut ids = Vec::new();
    for n in 0..8 {
        let id = sign_in(&stores[0], name, &format!("{name} {n}")).await.id;
        issue(&stores[0], &ticket_of(name, Credential::Session(id), &format!("{name} before {n}"))).await;
        ids.push(id);
    }
    let started = contend(stores, 24, |stores, n| {
        let (name, id) = (name.to_owned(), ids[n / 3]);
        async move {
            match n % 3 {
                _ if n == 10 => leave(&stores, exit, &name).await,
                0 => {
                    let new = new_session(&name, &format!("{name} new {n}"));
                    return stores.auth_sessions.start(&system(), &new).await.unwrap().map(|session| session.id);
                }
                1 => drop(refresh(&stores, &format!("{name} {}", n / 3), &format!("{name} next {}", n / 3)).await),
                _ => drop(
                    issue(&stores, &ticket_of(&name, Credential::Session(id), &format!("{name} during {n}"))).await,
                ),
            }
            None
        }
    })
    .await;
    ids.extend(started.into_iter().flatten());

    assert_eq!(sessions(&stores[1], name).await, []);
    for id in ids {
        assert!(!is_valid(&stores[1], id).await);
    }
    for n in 0..24 {
        for token in ["", "next ", "new "] {
            let outcome = refresh(&stores[1], &format!("{name} {token}{n}"), "never").await;
            assert_eq!(outcome, RefreshOutcome::Invalid);
        }
        assert_eq!(burned(&stores[1], &[format!("{name} before {n}").as_str()]).await, [""; 0]);
        let hash = SecretHash::of(&format!("{name} during {n}"));
        // A ticket that came after its user had gone hangs on a session that is known to have ended.
        if let BurnOutcome::Burned(ticket) = stores[1].tickets.burn(hash).await.unwrap() {
            let asked = [ticket.minted_by];
            assert_eq!(stores[1].auth_sessions.revoked(&asked).await.unwrap(), asked);
        }
    }
}

pub(crate) async fn nothing_outlives_the_end_of_its_user(backend: &dyn Backend) {
    let stores = replicas(backend, 4).await;
    for round in 0..4 {
        nothing_outlives(&stores, Exit::Disabled, &format!("disabled{round}")).await;
        nothing_outlives(&stores, Exit::Deleted, &format!("deleted{round}")).await;
    }
}
