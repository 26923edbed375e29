//! The plans that PostgreSQL used for the statements of the product, as it logged them itself.

use sqlx::postgres::PgPool;

/// Makes new sessions of this database log the plan of every statement, with what it read.
pub(crate) async fn log_plans(pool: &PgPool) {
    let name: String = sqlx::query_scalar("SELECT current_database()").fetch_one(pool).await.unwrap();
    for setting in [
        "session_preload_libraries = 'auto_explain'",
        "auto_explain.log_min_duration = 0",
        "auto_explain.log_analyze = on",
        "auto_explain.log_buffers = on",
        "auto_explain.log_timing = off",
    ] {
        let statement = format!("ALTER DATABASE {name} SET {setting}");
        sqlx::query(sqlx::AssertSqlSafe(statement)).execute(pool).await.unwrap();
    }
}

/// Returns the latest plan that was logged for the statement of this name, such as `runs.lease`.
pub(crate) async fn latest(pool: &PgPool, statement: &str) -> Option<String> {
    let log: String =
        sqlx::query_scalar("SELECT pg_read_file(regexp_replace(current_setting('data_directory'), '/data$', '/log'))")
            .fetch_one(pool)
            .await
            .unwrap();
    let query = format!("Query Text: -- {statement}\n");
    let from = log.rfind(&query)?;
    // Lines of one message begin with a tabulator, except the first.
    let message = log[from..].lines().skip(1).take_while(|line| line.starts_with(['\t', ' ']));
    let plan = message.skip_while(|line| !line.contains("(cost=")).map(str::trim_end);
    Some(plan.collect::<Vec<_>>().join("\n").replace('\t', ""))
}

/// Returns the pages that a plan touched, as its first line of buffers says.
pub(crate) fn buffers(plan: &str) -> Option<u64> {
    let line = plan.lines().find(|line| line.trim_start().starts_with("Buffers: shared"))?;
    let counts = line.split_whitespace().filter_map(|word| {
        let (kind, count) = word.split_once('=')?;
        matches!(kind, "hit" | "read").then(|| count.parse::<u64>().ok()).flatten()
    });
    Some(counts.sum())
}
