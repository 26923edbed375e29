//! Named secrets: versions, identities, lists, and what the audit log says.

use switchboard_model::ids::SecretId;
use switchboard_model::sealed::Sealed;
use switchboard_model::secret::{NewSecret, StoredSecret};
use switchboard_store_api::{SecretPutOutcome, Stores};

use crate::Backend;
use crate::fixtures::{contend, pages, replicas, system};

/// A secret to be set; every byte of what is sealed comes back.
pub(crate) fn new(name: &str) -> NewSecret {
    NewSecret { id: SecretId::new(), name: name.parse().unwrap(), sealed: Sealed(vec![2, 1, b'k', 0, 255]) }
}

async fn attempt(stores: &Stores, secret: &NewSecret, expected: Option<i64>) -> SecretPutOutcome {
    stores.secrets.put(&system(), secret, expected).await.unwrap()
}

pub(crate) async fn set(stores: &Stores, secret: &NewSecret) -> StoredSecret {
    match attempt(stores, secret, None).await {
        SecretPutOutcome::Set(secret) => secret,
        other => panic!("secret not set: {other:?}"),
    }
}

pub(crate) async fn a_secret_reads_back_as_it_was_sealed(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let wanted = new("crm.key");
    let first = set(&stores, &wanted).await;
    assert_eq!((first.id, &first.name, first.version, &first.sealed), (wanted.id, &wanted.name, 1, &wanted.sealed));
    let other = NewSecret { sealed: Sealed((0..=255).cycle().take(8_300).collect()), ..wanted.clone() };
    let second = set(&stores, &other).await;
    assert_eq!((second.version, &second.sealed, second.created_at), (2, &other.sealed, first.created_at));
    assert!(second.updated_at >= first.updated_at);
    let erp = set(&stores, &new("erp.key")).await;
    let names = ["erp.key", "none", "crm.key"].map(|name| name.parse().unwrap());
    assert_eq!(stores.secrets.find(&names).await.unwrap(), [second, erp]);
    assert_eq!(stores.secrets.find(&[]).await.unwrap(), []);
}

pub(crate) async fn a_secret_is_set_over_the_expected_version_and_for_its_identity_only(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let wanted = new("crm.key");
    assert_eq!(attempt(&stores, &wanted, Some(1)).await, SecretPutOutcome::VersionMismatch(0));
    assert!(matches!(attempt(&stores, &wanted, Some(0)).await, SecretPutOutcome::Set(_)));
    assert_eq!(attempt(&stores, &wanted, Some(0)).await, SecretPutOutcome::VersionMismatch(1));
    assert!(matches!(attempt(&stores, &wanted, Some(1)).await, SecretPutOutcome::Set(_)));
    assert_eq!(attempt(&stores, &new("crm.key"), None).await, SecretPutOutcome::Moved, "it is sealed for another row");
    assert_eq!(stores.secrets.find(&[wanted.name]).await.unwrap()[0].version, 2);
}

pub(crate) async fn secrets_are_listed_by_name_and_deleted_by_it(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let mut names = ["b", "a", "B", "a.b", "c"];
    for name in names {
        set(&stores, &new(name)).await;
    }
    names.sort_unstable();
    let listed = pages(2, async |page| stores.secrets.list(&page).await).await;
    assert_eq!(listed.iter().map(|secret| secret.name.as_str()).collect::<Vec<_>>(), names);
    let name = "a.b".parse().unwrap();
    assert!(stores.secrets.delete(&system(), &name).await.unwrap());
    assert!(!stores.secrets.delete(&system(), &name).await.unwrap());
    assert_eq!(pages(500, async |page| stores.secrets.list(&page).await).await.len(), 4);
    assert_eq!(set(&stores, &new("a.b")).await.version, 1);
}

pub(crate) async fn racing_writers_of_a_new_secret_make_one(backend: &dyn Backend) {
    let stores = replicas(backend, 2).await;
    let outcomes =
        contend(&stores, 10, |stores, _| async move { attempt(&stores, &new("crm.key"), Some(0)).await }).await;
    let set = outcomes.iter().filter(|outcome| matches!(outcome, SecretPutOutcome::Set(_))).count();
    let refused = outcomes.iter().filter(|outcome| **outcome == SecretPutOutcome::VersionMismatch(1)).count();
    assert_eq!((set, refused), (1, 9), "{outcomes:?}");
}
