//! `api-key`: in the database itself, as the first key needs it, or over HTTP.

use std::path::Path;

use anyhow::{Context as _, bail};
use switchboard_model::api_key::{API_KEY_PREFIX, ApiKey, NewApiKey};
use switchboard_model::ids::ApiKeyId;
use switchboard_model::json_text::JsonText;
use switchboard_model::secret_text::SecretText;
use switchboard_model::wire::rest::{ApiKeyRequest, ApiKeyResponse};

use super::listing::collect;
use super::stores::{change, with_stores};
use super::{form, remotely};
use crate::cli::{ApiKeyCommand, RemoteCommand};
use crate::config;
use crate::output::{self, Form, time};

/// Makes, lists or revokes API keys.
pub(crate) async fn run(command: RemoteCommand<ApiKeyCommand>, file: Option<&Path>) -> anyhow::Result<()> {
    let RemoteCommand { remote, command } = command;
    if !remote.is_given() {
        return locally(form(&remote), command, file).await;
    }
    remotely(&remote, async |session| match command {
        ApiKeyCommand::Create { name, scopes, ttl } => {
            let made = session.client.create_api_key(&ApiKeyRequest { name, scopes, ttl }).await?;
            show_once(session.form, &made)
        }
        ApiKeyCommand::List { limit } => {
            let keys = collect(limit, async |page| session.client.list_api_keys(page).await).await?;
            list(session.form, &keys)
        }
        ApiKeyCommand::Revoke { id } => {
            session.client.revoke_api_key(id).await?;
            session.form.said(format_args!("Revoked {id}."))
        }
    })
    .await
}

async fn locally(form: Form, command: ApiKeyCommand, file: Option<&Path>) -> anyhow::Result<()> {
    let config = config::load(file, &[])?;
    with_stores(&config, async |stores| match command {
        ApiKeyCommand::Create { name, scopes, ttl } => {
            let secret = SecretText::generate(API_KEY_PREFIX)?;
            let id = ApiKeyId::new();
            let after = JsonText::encode(&ApiKeyRequest { name: name.clone(), scopes: scopes.clone(), ttl })?;
            let context = change("api_key.create", id, None, Some(after));
            let new = NewApiKey { id, name, hash: secret.hash(), scopes, ttl };
            let made = stores.api_keys.create(&context, &new).await?;
            let key = made.now().context("the key was made by an earlier request")?;
            show_once(form, &ApiKeyResponse { key, secret: secret.expose().to_owned() })
        }
        ApiKeyCommand::List { limit } => {
            list(form, &collect(limit, async |page| stores.api_keys.list(&page).await).await?)
        }
        ApiKeyCommand::Revoke { id } => {
            if !stores.api_keys.revoke(&change("api_key.revoke", id, None, None), id).await? {
                bail!("there is no API key {id} that is not revoked; see `switchboard api-key list`");
            }
            form.said(format_args!("Revoked {id}."))
        }
    })
    .await
}

fn show_once(form: Form, made: &ApiKeyResponse) -> anyhow::Result<()> {
    form.done(made, &made.secret)?;
    if form == Form::People {
        output::warn(format_args!("This is the only time the key {} ({}) is shown.", made.key.name, made.key.id));
    }
    Ok(())
}

fn list(form: Form, keys: &[ApiKey]) -> anyhow::Result<()> {
    form.list(keys, ["ID", "NAME", "SCOPES", "CREATED", "EXPIRES", "REVOKED"], |key| {
        let scopes: Vec<String> = key.scopes.iter().map(ToString::to_string).collect();
        [
            key.id.to_string(),
            key.name.clone(),
            scopes.join(" "),
            time(Some(key.created_at)),
            time(key.expires_at),
            time(key.revoked_at),
        ]
    })
}
