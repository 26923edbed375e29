//! One process, one writer: what holds for the file as a whole.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use futures_util::future::join_all;
use switchboard_model::auth_session::Credential;
use switchboard_model::ids::TaskId;
use switchboard_model::page::PageRequest;
use switchboard_model::secret_text::SecretHash;
use switchboard_model::span::Span;
use switchboard_model::task::TaskSpec;
use switchboard_model::ticket::{Grants, NewTicket};
use switchboard_store_api::{BurnOutcome, MigrateReport, StoreError, WriteContext};
use switchboard_store_conformance::Backend as _;
use switchboard_store_sqlite::{OpenError, SqliteOptions, migrate, open, probe, schema_version};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::SqliteBackend;

/// The longest that a test waits for what must come.
const DEADLINE: Duration = Duration::from_secs(30);

fn spec(name: &str) -> TaskSpec {
    let text = format!(r#"{{"name":"{name}","action":{{"system":{{"function":"nothing"}}}}}}"#);
    serde_json::from_str(&text).unwrap()
}

fn context() -> WriteContext {
    WriteContext::system("tests")
}

fn ticket(text: &str) -> NewTicket {
    NewTicket {
        hash: SecretHash::of(text),
        user_id: "7".parse().unwrap(),
        minted_by: Credential::User("7".parse().unwrap()),
        origin: None,
        grants: Grants::default(),
        ttl: Span::from_secs(60),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_writers_and_readers_at_once_are_all_served() {
    let backend = SqliteBackend::create().await;
    let hammer = |writer: usize| {
        let stores = backend.stores.clone();
        async move {
            for n in 0..20 {
                let name = format!("task-{writer}-{n}");
                stores.tasks.create(&context(), TaskId::new(), &spec(&name)).await.unwrap();
                let found = stores.tasks.find(&name.parse().unwrap()).await.unwrap();
                assert!(found.is_some(), "a writer reads what it wrote");
                stores.tickets.issue(&context(), &ticket(&name)).await.unwrap();
                let burned = stores.tickets.burn(SecretHash::of(&name)).await.unwrap();
                assert!(matches!(burned, BurnOutcome::Burned(_)));
            }
        }
    };
    let writers = TaskTracker::new();
    let handles: Vec<_> = (0..50).map(|writer| writers.spawn(hammer(writer))).collect();
    for finished in join_all(handles).await {
        finished.unwrap();
    }
    let mut page = PageRequest { after: None, limit: 500 };
    let mut count = 0;
    loop {
        let found = backend.stores.tasks.list(&page).await.unwrap();
        count += found.items.len();
        match found.next_cursor {
            Some(cursor) => page.after = Some(cursor),
            None => break,
        }
    }
    assert_eq!(count, 1_000);
    backend.stop().await;
}

#[tokio::test]
async fn a_second_process_is_refused_until_the_first_has_stopped() {
    let backend = SqliteBackend::create().await;
    let options = backend.options();
    let again = async || open(&options, &TaskTracker::new(), CancellationToken::new()).await;
    let refused = again().await.err().unwrap();
    assert!(matches!(&refused, OpenError::InUse { path } if *path == options.path), "{refused:?}");
    assert_eq!(refused.to_string(), format!("another process has the database {} open", options.path.display()));
    assert!(matches!(migrate(&options).await, Err(OpenError::InUse { .. })));

    backend.stop().await;
    let (tracker, stop) = (TaskTracker::new(), CancellationToken::new());
    open(&options, &tracker, stop.clone()).await.unwrap();
    stop.cancel();
    tracker.close();
    tracker.wait().await;
}

#[tokio::test]
async fn no_link_leads_past_the_lock() {
    let backend = SqliteBackend::create().await;
    let elsewhere = tempfile::tempdir().unwrap();
    let (file, folder) = (elsewhere.path().join("file.db"), elsewhere.path().join("folder"));
    symlink(backend.options().path, &file).unwrap();
    symlink(backend.folder.path(), &folder).unwrap();
    for path in [file, folder.join("switchboard.db")] {
        let refused = migrate(&SqliteOptions::new(&path)).await;
        assert!(matches!(&refused, Err(OpenError::InUse { path: named }) if *named == path), "{refused:?}");
    }
    backend.stop().await;
}

#[tokio::test]
async fn links_to_a_database_that_is_still_to_be_made_share_its_lock() {
    let real = tempfile::tempdir().unwrap();
    let links = tempfile::tempdir().unwrap();
    let (folder, file) = (links.path().join("folder"), links.path().join("file.db"));
    symlink(real.path(), &folder).unwrap();
    symlink("folder/switchboard.db", &file).unwrap();
    for path in [folder.join("switchboard.db"), file, real.path().join("switchboard.db")] {
        probe(&SqliteOptions::new(path)).unwrap();
    }
    let names = |folder: &Path| -> Vec<_> {
        let mut names: Vec<_> = folder.read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(names(real.path()), ["switchboard.db-lock"]);
    assert_eq!(names(links.path()), ["file.db", "folder"]);

    let lost = migrate(&SqliteOptions::new(links.path().join("missing/switchboard.db"))).await;
    assert!(matches!(lost, Err(OpenError::LockFile { .. })), "{lost:?}");
}

#[tokio::test]
async fn a_stopped_database_is_unavailable() {
    let backend = SqliteBackend::create().await;
    backend.stop().await;
    let stores = backend.stores().await;
    let write = stores.tasks.create(&context(), TaskId::new(), &spec("late")).await;
    assert!(matches!(write, Err(StoreError::Unavailable(_))), "{write:?}");
    let read = stores.tasks.find(&"late".parse().unwrap()).await;
    assert!(matches!(read, Err(StoreError::Unavailable(_))), "{read:?}");
    assert!(matches!(stores.feed.ping().await, Err(StoreError::Unavailable(_))));
}

#[tokio::test]
async fn migrating_again_applies_nothing_and_tolerates_what_a_newer_binary_applied() {
    let folder = tempfile::tempdir().unwrap();
    let options = SqliteOptions::new(folder.path().join("switchboard.db"));
    let report = |before, after| MigrateReport { before, after, known: schema_version() };
    assert_eq!(migrate(&options).await.unwrap(), report(0, schema_version()));
    assert_eq!(migrate(&options).await.unwrap(), report(schema_version(), schema_version()));

    let pool = sqlx::SqlitePool::connect_with(sqlx::sqlite::SqliteConnectOptions::new().filename(&options.path));
    let pool = pool.await.unwrap();
    let newer = "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
        VALUES (9999, 'newer', 1, x'00', 0)";
    sqlx::query(newer).execute(&pool).await.unwrap();
    pool.close().await;
    assert_eq!(migrate(&options).await.unwrap(), report(9999, 9999));
}

#[tokio::test]
async fn a_task_that_cannot_be_read_is_parked_and_the_others_are_due() {
    let backend = SqliteBackend::create().await;
    let stores = backend.stores().await;
    let mut ids = Vec::new();
    for name in ["bad", "good"] {
        let id = TaskId::new();
        let text = r#"{"every":{"interval":"100ms"}}"#;
        let scheduled = TaskSpec { schedule: Some(serde_json::from_str(text).unwrap()), ..spec(name) };
        stores.tasks.create(&context(), id, &scheduled).await.unwrap();
        ids.push(id);
    }
    let pool =
        sqlx::SqlitePool::connect_with(sqlx::sqlite::SqliteConnectOptions::new().filename(backend.options().path));
    let pool = pool.await.unwrap();
    sqlx::query("UPDATE tasks SET spec = '{\"name\":5}' WHERE name = 'bad'").execute(&pool).await.unwrap();
    pool.close().await;

    let due = timeout(DEADLINE, async {
        loop {
            let due = stores.tasks.due(10).await.unwrap().tasks;
            if !due.is_empty() {
                break due;
            }
            sleep(Duration::from_millis(5)).await;
        }
    });
    let due = due.await.expect("the task is due in time");
    assert_eq!(due.iter().map(|task| task.id).collect::<Vec<_>>(), ids[1..]);
    assert!(matches!(stores.tasks.get(ids[0]).await, Err(StoreError::Corrupt { .. })));
    assert_eq!(stores.tasks.count_unarmed().await.unwrap(), 0);
    backend.stop().await;
}
