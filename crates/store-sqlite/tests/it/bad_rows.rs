//! Rows that cannot be read: each stands alone, its neighbours go on.

use sqlx::ConnectOptions as _;
use sqlx::sqlite::SqliteConnectOptions;
use switchboard_model::ids::TaskId;
use switchboard_model::page::PageRequest;
use switchboard_store_api::WriteContext;
use switchboard_store_conformance::Backend as _;

use crate::SqliteBackend;

#[tokio::test]
async fn a_task_that_cannot_be_read_is_left_out_of_a_list() {
    let backend = SqliteBackend::create().await;
    let stores = backend.stores().await;
    for name in ["first", "bad", "last"] {
        let text = format!(r#"{{"name":"{name}","action":{{"system":{{"function":"nothing"}}}}}}"#);
        let spec = serde_json::from_str(&text).unwrap();
        stores.tasks.create(&WriteContext::system("tests"), TaskId::new(), &spec).await.unwrap();
    }
    let mut raw = SqliteConnectOptions::new().filename(backend.options().path).connect().await.unwrap();
    sqlx::query("UPDATE tasks SET spec = '{' WHERE name = 'bad'").execute(&mut raw).await.unwrap();
    let mut page = PageRequest { after: None, limit: 1 };
    let mut pages = Vec::new();
    loop {
        let found = stores.tasks.list(&page).await.unwrap();
        pages.push(found.items.iter().map(|task| task.spec.name.to_string()).collect::<Vec<_>>());
        match found.next_cursor {
            Some(cursor) => page.after = Some(cursor),
            None => break,
        }
    }
    assert_eq!(pages, [vec!["first"], vec![], vec!["last"]]);
    backend.close().await;
}
