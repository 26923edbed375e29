//! Migrations: boot races, newer schemas, and poolers.

use switchboard_model::feed::TickRequest;
use switchboard_model::sealed::SealedTable;
use switchboard_store_pg::{HintTransport, OpenError, PgOptions, migrate, open, schema_version};
use switchboard_testkit::TestDatabase;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::backend::options;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_that_boot_together_on_an_empty_database_all_succeed() {
    let database = TestDatabase::empty().await;
    let mut boots = JoinSet::new();
    for _ in 0..6 {
        let options = options(database.url());
        boots.spawn(async move { migrate(&options).await.unwrap() });
    }
    let reports = boots.join_all().await;
    assert!(reports.iter().all(|report| report.after == schema_version()));
    assert_eq!(reports.iter().filter(|report| report.before == 0).count(), 1, "one of them migrated");
}

#[tokio::test]
async fn every_column_of_encrypted_values_is_brought_to_new_keys() {
    let database = TestDatabase::create().await;
    let mut found: Vec<String> = sqlx::query_scalar(
        "SELECT table_name::text FROM information_schema.columns
         WHERE table_schema = 'switchboard' AND column_name LIKE '%sealed%'",
    )
    .fetch_all(database.pool())
    .await
    .unwrap();
    found.sort_unstable();
    // A canary stays with its key.
    let mut known = [SealedTable::ALL.iter().map(|table| table.as_str()).collect(), vec!["sealing_canaries"]].concat();
    known.sort_unstable();
    assert_eq!(found, known);
}

#[tokio::test]
async fn a_newer_schema_is_tolerated() {
    let database = TestDatabase::create().await;
    let newer = schema_version() + 7;
    sqlx::query(
        "INSERT INTO switchboard._sqlx_migrations (version, description, success, checksum, execution_time)
         VALUES ($1, 'from a newer release', true, '', 0)",
    )
    .bind(newer)
    .execute(database.pool())
    .await
    .unwrap();
    let report = migrate(&options(database.url())).await.unwrap();
    assert_eq!((report.before, report.after, report.known), (newer, newer, schema_version()));
}

#[tokio::test]
async fn migrating_behind_a_pooler_is_refused_until_a_direct_url_is_given() {
    let database = TestDatabase::empty().await;
    let pooled = PgOptions { pooled: true, ..options(database.url()) };
    let tracker = TaskTracker::new();
    for refused in [migrate(&pooled).await.map(drop), open(&pooled, &tracker, CancellationToken::new()).await.map(drop)]
    {
        let Err(error @ OpenError::MigrationBehindPooler { .. }) = refused else {
            panic!("the pooler must be in the way: {refused:?}")
        };
        assert!(error.to_string().contains("database.direct_url"));
    }
    let direct =
        PgOptions { direct_url: Some(database.url().to_owned()), notify: HintTransport::Off, ..pooled.clone() };
    let stores = open(&direct, &tracker, CancellationToken::new()).await.unwrap();
    stores.feed.tick(None, &TickRequest::default()).await.unwrap();

    // With nothing left to migrate the pooler alone is enough.
    let pooled = PgOptions { notify: HintTransport::Off, ..pooled };
    open(&pooled, &tracker, CancellationToken::new()).await.unwrap();
}
