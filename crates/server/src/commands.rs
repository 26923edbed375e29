//! Commands that work on the database itself and end.

use std::process::ExitCode;

use anyhow::bail;
use comfy_table::{Table, presets};
use serde_json::json;
use switchboard_model::api_key::{API_KEY_PREFIX, ApiKey};
use switchboard_model::ids::InstanceId;
use switchboard_model::page::PageRequest;
use switchboard_model::secret_text::SecretText;
use switchboard_store_api::{Stores, WriteContext};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::app::store_key;
use crate::cli::ApiKeyCommand;
use crate::config::Config;
use crate::database::Database;

/// Applies the migrations that are missing.
pub(crate) async fn migrate(config: &Config) -> anyhow::Result<ExitCode> {
    let report = match Database::of(config, InstanceId::boot("migrate"))? {
        Database::Sqlite(options) => switchboard_store_sqlite::migrate(&options).await?,
        Database::Postgres(options) => switchboard_store_pg::migrate(&options).await?,
    };
    if report.after > report.known {
        println!("The schema has version {}, newer than {} of this binary.", report.after, report.known);
    } else if report.after == report.before {
        println!("The schema is up to date at version {}.", report.after);
    } else {
        println!("Migrated the schema from version {} to {}.", report.before, report.after);
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes, lists or revokes API keys.
pub(crate) async fn api_key(config: &Config, command: ApiKeyCommand) -> anyhow::Result<ExitCode> {
    with_stores(config, async |stores| match command {
        ApiKeyCommand::Create { name, scopes, ttl, json } => {
            let key = SecretText::generate(API_KEY_PREFIX)?;
            let stored = store_key(stores, &name, &key, scopes, ttl).await?;
            if json {
                println!("{}", json!({ "id": stored.id, "name": stored.name, "key": key.expose() }));
            } else {
                println!("{}", key.expose());
                eprintln!("This is the only time the key {} ({}) is shown.", stored.name, stored.id);
            }
            Ok(())
        }
        ApiKeyCommand::List { json } => list_keys(stores, json).await,
        ApiKeyCommand::Revoke { id } => {
            if !stores.api_keys.revoke(&WriteContext::system("cli"), id).await? {
                bail!("there is no API key {id} that is not revoked; see `switchboard api-key list`");
            }
            println!("Revoked {id}.");
            Ok(())
        }
    })
    .await?;
    Ok(ExitCode::SUCCESS)
}

async fn list_keys(stores: &Stores, as_json: bool) -> anyhow::Result<()> {
    let mut keys: Vec<ApiKey> = Vec::new();
    let mut request = PageRequest { after: None, limit: switchboard_model::page::MAX_PAGE };
    loop {
        let page = stores.api_keys.list(&request).await?;
        keys.extend(page.items);
        request.after = page.next_cursor;
        if request.after.is_none() {
            break;
        }
    }
    if as_json {
        println!("{}", serde_json::to_string_pretty(&keys)?);
        return Ok(());
    }
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(["ID", "NAME", "SCOPES", "CREATED", "EXPIRES", "REVOKED"]);
    for key in keys {
        let scopes: Vec<String> = key.scopes.iter().map(ToString::to_string).collect();
        let time =
            |at: Option<switchboard_model::Timestamp>| at.map_or("-".to_owned(), |at| at.format("%F %T").to_string());
        table.add_row([
            key.id.to_string(),
            key.name,
            scopes.join(" "),
            time(Some(key.created_at)),
            time(key.expires_at),
            time(key.revoked_at),
        ]);
    }
    println!("{table}");
    Ok(())
}

/// Opens the database for one piece of work and closes it again.
async fn with_stores<T>(config: &Config, work: impl AsyncFnOnce(&Stores) -> anyhow::Result<T>) -> anyhow::Result<T> {
    let (tracker, stop) = (TaskTracker::new(), CancellationToken::new());
    let stores = Database::of(config, InstanceId::boot("cli"))?.open(&tracker, stop.clone()).await?;
    let result = work(&stores).await;
    drop(stores);
    stop.cancel();
    tracker.close();
    tracker.wait().await;
    result
}
