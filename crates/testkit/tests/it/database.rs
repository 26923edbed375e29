//! Databases are alike, independent of each other, and gone after the test.

use std::collections::BTreeSet;

use sqlx::{Connection as _, PgConnection};
use switchboard_testkit::TestDatabase;

async fn tables(database: &TestDatabase) -> BTreeSet<String> {
    let query = sqlx::query_scalar("SELECT tablename::text FROM pg_tables WHERE schemaname = 'switchboard'");
    query.fetch_all(database.pool()).await.unwrap().into_iter().collect()
}

#[tokio::test]
async fn clones_have_the_schema_and_share_nothing() {
    let (a, b) = tokio::join!(TestDatabase::create(), TestDatabase::create());
    assert_ne!(a.url(), b.url());
    let found = tables(&a).await;
    assert!(found.contains("tasks") && found.contains("rooms"), "{found:?}");
    assert_eq!(found, tables(&b).await);
    sqlx::query("DROP TABLE tasks CASCADE").execute(a.pool()).await.unwrap();
    assert_eq!(found, tables(&b).await);
}

#[tokio::test]
async fn a_dropped_database_is_gone_though_somebody_is_connected() {
    let keeper = TestDatabase::empty().await;
    assert!(tables(&keeper).await.is_empty());
    let database = TestDatabase::empty().await;
    let mut connection = PgConnection::connect(database.url()).await.unwrap();
    let name: String = sqlx::query_scalar("SELECT current_database()::text").fetch_one(&mut connection).await.unwrap();
    drop(database);
    assert!(connection.ping().await.is_err());
    let query = sqlx::query_scalar("SELECT count(*) FROM pg_database WHERE datname = $1").bind(name);
    let left: i64 = query.fetch_one(keeper.pool()).await.unwrap();
    assert_eq!(left, 0);
}
