//! Sweeps of rows that no trait can age.

use switchboard_store_conformance::Backend as _;

use crate::backend::PgBackend;

#[tokio::test]
async fn all_expired_message_ids_are_forgotten_and_counted() {
    let backend = PgBackend::create().await;
    let stores = backend.stores().await;
    sqlx::query(
        "INSERT INTO switchboard.room_dedupe (room_id, sender, msg_id, pos, expires_at)
         SELECT gen_random_uuid(), 'sender', n::text, 1, now() - interval '1 hour'
         FROM generate_series(1, 12345) AS n
         UNION ALL SELECT gen_random_uuid(), 'sender', 'live', 1, now() + interval '1 hour'",
    )
    .execute(backend.database.pool())
    .await
    .unwrap();
    let mut total = 0;
    loop {
        match stores.rooms.sweep(10).await.unwrap() {
            0 => break,
            deleted => total += deleted,
        }
    }
    assert_eq!(total, 12_345);
    let left: Vec<String> = sqlx::query_scalar("SELECT msg_id FROM switchboard.room_dedupe")
        .fetch_all(backend.database.pool())
        .await
        .unwrap();
    assert_eq!(left, ["live"]);
    backend.close().await;
}
