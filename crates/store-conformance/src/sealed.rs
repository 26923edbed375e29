//! Encrypted values of all tables: counted and found by how they begin, replaced unless they changed, and the canaries.

use std::collections::BTreeMap;

use switchboard_model::sealed::{Reseal, Sealed, SealedTable, SealedValue};
use switchboard_model::secret::NewSecret;
use switchboard_model::webhook::NewWebhookSecret;
use switchboard_store_api::Stores;
use uuid::Uuid;

use crate::accounts::new_secret;
use crate::fixtures::{contend, create, now, replicas, spec, system};
use crate::{Backend, secrets, tokens};

/// A value under a key, which says no more.
fn under(key: &str, rest: &[u8]) -> Sealed {
    Sealed([Sealed::head_of(2, key), rest.to_vec()].concat())
}

/// Puts two values into each table, under the key `old`.
async fn fill(stores: &Stores) {
    let task = create(stores, &spec("t", |_| {})).await.id;
    for n in 0..2_u8 {
        let sealed = under("old", &[n]);
        let webhook = NewWebhookSecret { sealed: sealed.0.clone(), ..new_secret(task) };
        now(stores.webhooks.add(&system(), &webhook).await.unwrap());
        secrets::set(stores, &NewSecret { sealed: sealed.clone(), ..secrets::new(&format!("s{n}")) }).await;
        let mut token = tokens::new(&format!("t{n}"));
        token.granted.sealed = sealed;
        tokens::set(stores, &token).await;
    }
}

/// Counts the values of each table by the key that they name.
async fn counted(stores: &Stores) -> BTreeMap<(String, &'static str), u64> {
    let counts = stores.sealed.counts().await.unwrap();
    let key = |head: &Sealed| head.key_id().unwrap_or("none").to_owned();
    counts.iter().map(|count| ((key(&count.head), count.table.as_str()), count.values)).collect()
}

async fn stale(stores: &Stores, table: SealedTable, after: Uuid, limit: u32) -> Vec<SealedValue> {
    stores.sealed.stale(table, &Sealed::head_of(2, "new"), after, limit).await.unwrap()
}

pub(crate) async fn values_of_every_table_go_from_one_key_to_another(backend: &dyn Backend) {
    let stores = backend.stores().await;
    assert_eq!(counted(&stores).await, BTreeMap::new());
    fill(&stores).await;
    let all = |key: &str| SealedTable::ALL.iter().map(|table| ((key.to_owned(), table.as_str()), 2)).collect();
    assert_eq!(counted(&stores).await, all("old"));
    for table in SealedTable::ALL {
        let found = stale(&stores, *table, Uuid::nil(), 10).await;
        assert_eq!(found.len(), 2);
        assert_eq!(stale(&stores, *table, Uuid::nil(), 1).await, found[..1], "in the order of the rows");
        assert_eq!(stale(&stores, *table, found[0].row, 10).await, found[1..]);
        let changes: Vec<Reseal> = found
            .iter()
            .rev()
            .map(|value| {
                let rest = &value.sealed.split().unwrap().1;
                Reseal { row: value.row, before: value.sealed.clone(), after: under("new", rest) }
            })
            .collect();
        assert_eq!(stores.sealed.reseal(*table, &changes).await.unwrap(), 2);
        assert_eq!(stores.sealed.reseal(*table, &changes).await.unwrap(), 0, "they are not what they were");
        assert_eq!(stale(&stores, *table, Uuid::nil(), 10).await, []);
    }
    assert_eq!(counted(&stores).await, all("new"));
    let names = ["s0", "s1"].map(|name| name.parse().unwrap());
    let read = stores.secrets.find(&names).await.unwrap();
    assert_eq!(
        read.iter().map(|secret| &secret.sealed).collect::<Vec<_>>(),
        [&under("new", &[0]), &under("new", &[1])]
    );
    assert_eq!(read[0].version, 1, "to be encrypted anew is no change of the value");
}

pub(crate) async fn a_value_that_changes_meanwhile_is_left_as_it_is(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let secret = NewSecret { sealed: under("old", b"1"), ..secrets::new("s") };
    secrets::set(&stores, &secret).await;
    let found = stale(&stores, SealedTable::Secrets, Uuid::nil(), 10).await.remove(0);
    let newer = NewSecret { sealed: under("old", b"2"), ..secret.clone() };
    secrets::set(&stores, &newer).await;
    let late = Reseal { row: found.row, before: found.sealed, after: under("new", b"1") };
    let unknown = Reseal { row: Uuid::from_u128(1), ..late.clone() };
    assert_eq!(stores.sealed.reseal(SealedTable::Secrets, &[late, unknown]).await.unwrap(), 0);
    assert_eq!(stores.secrets.find(&[secret.name]).await.unwrap()[0].sealed, newer.sealed);
}

pub(crate) async fn values_of_an_unknown_form_are_counted_and_found(backend: &dyn Backend) {
    let stores = backend.stores().await;
    for (name, bytes) in [("a", vec![]), ("b", vec![9]), ("c", vec![2, 200, 1]), ("d", vec![0, 0])] {
        secrets::set(&stores, &NewSecret { sealed: Sealed(bytes), ..secrets::new(name) }).await;
    }
    assert_eq!(stale(&stores, SealedTable::Secrets, Uuid::nil(), 10).await.len(), 4);
    assert_eq!(stores.sealed.counts().await.unwrap().iter().map(|count| count.values).sum::<u64>(), 4);
}

pub(crate) async fn replicas_that_seal_anew_together_do_each_value_once(backend: &dyn Backend) {
    let stores = replicas(backend, 2).await;
    for n in 0..20 {
        secrets::set(&stores[0], &NewSecret { sealed: under("old", b"x"), ..secrets::new(&format!("s{n}")) }).await;
    }
    let replaced = contend(&stores, 4, |stores, _| async move {
        let found = stale(&stores, SealedTable::Secrets, Uuid::nil(), 100).await;
        let change = |value: SealedValue| Reseal { row: value.row, before: value.sealed, after: under("new", b"x") };
        let changes: Vec<Reseal> = found.into_iter().map(change).collect();
        stores.sealed.reseal(SealedTable::Secrets, &changes).await.unwrap()
    })
    .await;
    assert_eq!(replaced.iter().sum::<u64>(), 20, "{replaced:?}");
}

pub(crate) async fn the_key_that_was_promoted_last_is_the_first_canary(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let value = |n| SealedValue { row: Uuid::from_u128(n), sealed: under("k", &[0, 255]) };
    let keys = async || {
        let canaries = stores.sealed.canaries().await.unwrap();
        canaries.iter().map(|canary| (canary.key_id.clone(), canary.retired_at.is_some())).collect::<Vec<_>>()
    };
    let told = |keys: &[(&str, bool)]| keys.iter().map(|(key, is)| ((*key).to_owned(), *is)).collect::<Vec<_>>();
    assert_eq!(keys().await, []);
    stores.sealed.add_canary("old", &value(1)).await.unwrap();
    stores.sealed.add_canary("new", &value(2)).await.unwrap();
    stores.sealed.add_canary("old", &value(3)).await.unwrap();
    assert_eq!(keys().await, told(&[("new", false), ("old", false)]), "one that is there stays as it is");
    assert_eq!(stores.sealed.canaries().await.unwrap()[1].value, value(1));
    assert!(stores.sealed.promote(&system(), "old").await.unwrap());
    assert!(!stores.sealed.promote(&system(), "other").await.unwrap());
    assert_eq!(keys().await, told(&[("old", false), ("new", false)]));
    assert!(stores.sealed.retire(&system(), "new").await.unwrap());
    assert!(!stores.sealed.retire(&system(), "new").await.unwrap());
    assert!(!stores.sealed.promote(&system(), "new").await.unwrap(), "it is not taken up again");
    assert!(!stores.sealed.retire(&system(), "other").await.unwrap());
    assert_eq!(keys().await, told(&[("old", false), ("new", true)]));
}
