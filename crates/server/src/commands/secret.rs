//! `secret` and `provider-token`: secrets, the keys that encrypt them, and tokens of providers.

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use switchboard_client::Client;
use switchboard_model::secret::SecretValue;
use switchboard_model::token::TokenProvider;
use switchboard_model::wire::secret::{
    RewrapReport, RewrapRequest, SealingReport, SecretRequest, Token, TokenAccessRequest, TokenSetRequest,
};

use super::listing::collect;
use super::stores::{change, with_stores};
use super::{Session, form, remotely, secret_input};
use crate::cli::{ProviderTokenCommand, RemoteCommand, SecretCommand, ValueSource};
use crate::config;
use crate::output::{self, Form, maybe, time};

/// Does one thing with secrets.
pub(crate) async fn run(command: RemoteCommand<SecretCommand>, file: Option<&Path>) -> Result<()> {
    let RemoteCommand { remote, command } = command;
    if let SecretCommand::RetireKey { key_id } = command {
        return retire(form(&remote), &key_id, file).await;
    }
    remotely(&remote, async |session| obey(&session, command).await).await
}

async fn obey(session: &Session, command: SecretCommand) -> Result<()> {
    let Session { client, form } = session;
    match command {
        SecretCommand::Set { name, value, version } => {
            let request = SecretRequest { value: take("value", &value)?, version };
            let set = client.put_secret(&name, &request).await?;
            form.done(&set, format_args!("Set secret {name}, version {}.", set.version))
        }
        SecretCommand::List { limit } => {
            let secrets = collect(limit, async |page| client.list_secrets(page).await).await?;
            form.list(&secrets, ["NAME", "VERSION", "KEY", "SET"], |secret| {
                let (name, version) = (secret.name.to_string(), secret.version.to_string());
                [name, version, secret.key_id.clone(), time(Some(secret.updated_at))]
            })
        }
        SecretCommand::Delete { name } => {
            client.delete_secret(&name).await?;
            form.said(format_args!("Deleted secret {name}."))
        }
        SecretCommand::Keys => keys(*form, &client.sealing().await?),
        SecretCommand::Rewrap { to } => rewrap(client, *form, to).await,
        SecretCommand::RetireKey { .. } => bail!("this is done in the database itself"),
    }
}

fn keys(form: Form, report: &SealingReport) -> Result<()> {
    if form == Form::Programs {
        return output::json(report);
    }
    form.list(&report.keys, ["KEY", "TABLE", "VALUES", "LEFT", "HERE"], |key| {
        let here = if key.is_configured { "yes" } else { "no" };
        [
            maybe(key.key_id.as_ref()),
            key.table.to_string(),
            key.values.to_string(),
            key.stale.to_string(),
            here.to_owned(),
        ]
    })?;
    output::warn(format_args!("The current key is {}; this replica encrypts by {}.", report.current, report.encrypts));
    Ok(())
}

/// Asks for one stretch after another until nothing is left that can be done.
async fn rewrap(client: &Client, form: Form, to: Option<String>) -> Result<()> {
    let request = RewrapRequest { key_id: to };
    let mut total = RewrapReport::default();
    loop {
        let RewrapReport { rewrapped, unreadable, left, retired } = client.rewrap(&request).await?;
        let is_over = rewrapped == 0 || left == 0;
        total = RewrapReport { rewrapped: total.rewrapped + rewrapped, unreadable, left, retired };
        if is_over {
            break;
        }
        output::progress(format_args!("{} values are under the current key, {left} are left", total.rewrapped));
    }
    if total.left > 0 {
        form.done(&total, format_args!("Brought {} values under the current key.", total.rewrapped))?;
        bail!(
            "{} values are left, {} of which the replica cannot read: `switchboard secret keys` shows which keys they need",
            total.left,
            total.unreadable
        );
    }
    let retired = match total.retired.as_slice() {
        [] => "No other key is in use.".to_owned(),
        keys => format!("Nothing needs {} any more: remove it from secrets.keys.", keys.join(", ")),
    };
    form.done(&total, format_args!("Brought {} values under the current key. {retired}", total.rewrapped))
}

async fn retire(form: Form, key_id: &str, file: Option<&Path>) -> Result<()> {
    let config = config::load(file, &[])?;
    with_stores(&config, async |stores| {
        let context = change("sealing_key.retire", key_id, None, None);
        if !stores.sealed.retire(&context, key_id).await? {
            bail!("there is no key {key_id} that is in use");
        }
        form.said(format_args!("Retired key {key_id}: what only it decrypts is lost; set it anew or delete it."))
    })
    .await
}

/// Does one thing with tokens of providers.
pub(crate) async fn run_tokens(command: RemoteCommand<ProviderTokenCommand>) -> Result<()> {
    let RemoteCommand { remote, command } = command;
    remotely(&remote, async |session| obey_about_tokens(&session, command).await).await
}

async fn obey_about_tokens(session: &Session, command: ProviderTokenCommand) -> Result<()> {
    let Session { client, form } = session;
    match command {
        ProviderTokenCommand::Set {
            name,
            token_url,
            client_id,
            client_secret,
            client_auth,
            scope,
            client_credentials,
            value,
        } => {
            let refresh_token = if client_credentials { None } else { Some(take("refresh token", &value)?) };
            let provider = TokenProvider { token_url, client_id, client_secret, client_auth, scope };
            let request = TokenSetRequest { provider, refresh_token, access_token: None, expires_in: None };
            let set = client.put_token(&name, &request).await?;
            form.done(&set, format_args!("Set token {name}, version {}.", set.version))
        }
        ProviderTokenCommand::List { limit } => {
            let tokens = collect(limit, async |page| client.list_tokens(page).await).await?;
            form.list(&tokens, ["NAME", "VERSION", "GRANTED", "EXPIRES", "FAILURES", "ERROR"], row)
        }
        ProviderTokenCommand::Get { name } => form.one(&client.get_token(&name).await?),
        ProviderTokenCommand::Access { name, min_ttl, refused_version } => {
            let access = client.token_access(&name, &TokenAccessRequest { min_ttl, refused_version }).await?;
            form.done(&access, &access.access_token)
        }
        ProviderTokenCommand::Delete { name } => {
            client.delete_token(&name).await?;
            form.said(format_args!("Deleted token {name}."))
        }
    }
}

fn row(token: &Token) -> [String; 6] {
    [
        token.name.to_string(),
        token.version.to_string(),
        time(token.granted_at),
        time(token.expires_at),
        token.failures.to_string(),
        maybe(token.last_error.as_ref()),
    ]
}

/// Takes a value from where it is said to be, and never from the command line, which others see.
fn take(what: &str, source: &ValueSource) -> Result<SecretValue> {
    let text = match &source.value_file {
        Some(path) => {
            let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
            secret_input::without_line_break(&text).to_owned()
        }
        None => secret_input::take(what, source.value_stdin, "--value-stdin or --value-file")?,
    };
    Ok(SecretValue::new(text))
}
