//! `token`: sign-in, and the keys behind it.

use anyhow::{Result, anyhow};
use serde_json::json;
use switchboard_client::ClientError;
use switchboard_http::{KeyAlgorithm, KeyRing, Sealer};
use switchboard_model::span::Span;
use switchboard_model::wire::auth::{LoginRequest, LogoutRequest, RefreshRequest, TokenResponse};
use switchboard_model::wire::code::ErrorCode;

use super::{form, remotely, secret_input};
use crate::cli::{KeyKind, RemoteCommand, TokenCommand};
use crate::output::{self, Form};

/// Does one thing about sign-in.
pub(crate) async fn run(command: RemoteCommand<TokenCommand>) -> Result<()> {
    let RemoteCommand { remote, command } = command;
    if let TokenCommand::NewKey { kind, id } = command {
        return new_key(form(&remote), kind, &id);
    }
    remotely(&remote, async |session| {
        let (client, form) = (session.client, session.form);
        match command {
            TokenCommand::Login { name, password } => {
                let request = LoginRequest { name, password: secret_input::password(password)? };
                show(form, &client.login(&request).await.map_err(refused)?)
            }
            TokenCommand::Refresh { token_stdin } => {
                let refresh_token = secret_input::take("refresh token", token_stdin, "--token-stdin")?;
                show(form, &client.refresh(&RefreshRequest { refresh_token }).await.map_err(refused)?)
            }
            TokenCommand::Me => form.one(&client.me().await?),
            TokenCommand::Logout { everywhere } => {
                client.logout(&LogoutRequest { everywhere }).await?;
                form.said("Signed out.")
            }
            TokenCommand::NewKey { kind, id } => new_key(form, kind, &id),
        }
    })
    .await
}

fn show(form: Form, tokens: &TokenResponse) -> Result<()> {
    form.done(tokens, &tokens.access_token)?;
    if form == Form::People {
        let lifetime = Span::from_secs(tokens.expires_in);
        output::warn(format_args!(
            "It is {}'s for {lifetime}, and goes where an API key goes: SWITCHBOARD_API_KEY.",
            tokens.user.name
        ));
    }
    Ok(())
}

/// Keeps away the advice for callers without an API key, who do not need one here.
fn refused(error: ClientError) -> anyhow::Error {
    match error {
        ClientError::Problem(problem) if problem.code == ErrorCode::Unauthorized => {
            anyhow!("{} (request {})", problem.detail, problem.request_id)
        }
        error => error.into(),
    }
}

fn new_key(form: Form, kind: KeyKind, id: &str) -> Result<()> {
    let key = match kind {
        KeyKind::Hs256 => KeyRing::generate_text(id, KeyAlgorithm::Hs256)?,
        KeyKind::Ed25519 => KeyRing::generate_text(id, KeyAlgorithm::Ed25519)?,
        KeyKind::Secrets => Sealer::generate_text(id)?,
    };
    form.done(&json!({ "key": key.expose() }), key.expose())
}
