//! `webhook`: the secrets by which others trigger tasks, and a delivery to try them.

use std::fmt::{self, Display};

use anyhow::{Context as _, Result};
use serde::Serialize;
use switchboard_client::{Client, WebhookDelivery, webhook_signature};
use switchboard_model::Timestamp;
use switchboard_model::identity::TaskName;
use switchboard_model::secret_text::SecretText;
use switchboard_model::webhook_signature::WEBHOOK_TOLERANCE_SECONDS;
use switchboard_model::wire::rest::WebhookSecretRequest;

use super::task::id_of;
use super::{Session, json_argument, remotely, secret_input};
use crate::cli::{RemoteCommand, WebhookCommand};
use crate::output::{self, Form, time};

/// Does one thing with webhooks.
pub(crate) async fn run(command: RemoteCommand<WebhookCommand>) -> Result<()> {
    let RemoteCommand { remote, command } = command;
    remotely(&remote, async |session| obey(&session, command).await).await
}

async fn obey(session: &Session, command: WebhookCommand) -> Result<()> {
    let Session { client, form } = session;
    match command {
        WebhookCommand::Add { task, purpose, secret_stdin, ttl } => {
            let id = id_of(client, &task).await?;
            let secret = if secret_stdin { Some(secret_input::take("secret", true, "--secret-stdin")?) } else { None };
            let made = client.create_webhook_secret(id, &WebhookSecretRequest { purpose, secret, ttl }).await?;
            form.done(&made, &made.secret)?;
            if *form == Form::People {
                let whose = made.url.map_or("what the task sends".to_owned(), |url| format!("deliveries to {url}"));
                output::warn(format_args!("This is the only time it is shown. It signs {whose}"));
            }
            Ok(())
        }
        WebhookCommand::List { task } => {
            let secrets = client.list_webhook_secrets(id_of(client, &task).await?).await?;
            form.list(&secrets, ["ID", "PURPOSE", "CREATED", "EXPIRES"], |secret| {
                let (created, expires) = (time(Some(secret.created_at)), time(secret.expires_at));
                [secret.id.to_string(), secret.purpose.to_string(), created, expires]
            })
        }
        WebhookCommand::Delete { task, id } => {
            client.delete_webhook_secret(id_of(client, &task).await?, id).await?;
            form.said(format_args!("Deleted webhook secret {id}."))
        }
        WebhookCommand::Curl { task, secret, body, id } => {
            let body = match body.strip_prefix('@') {
                Some(path) => std::fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?,
                None => body,
            };
            let id = id.map_or_else(|| format!("msg_{}", uuid::Uuid::new_v4().simple()), |id| id.to_string());
            let delivery = WebhookDelivery::of_json(id, &json_argument("body", body)?);
            let signed = Signed::new(client, &task, &secret, &delivery)?;
            form.done(&signed, &signed)?;
            if *form == Form::People {
                output::warn(format_args!("It is good until {}.", time(signed.good_until)));
            }
            Ok(())
        }
    }
}

/// A delivery that is ready to be sent.
#[derive(Serialize)]
struct Signed {
    url: String,
    headers: [(&'static str, String); 4],
    body: String,
    good_until: Option<Timestamp>,
}

impl Signed {
    fn new(client: &Client, task: &TaskName, secret: &SecretText, delivery: &WebhookDelivery) -> Result<Self> {
        let WebhookDelivery { id, timestamp, content_type, body } = delivery;
        let signature = webhook_signature(secret, id, *timestamp, body).context("the secret")?;
        Ok(Self {
            url: client.webhook_url(task),
            headers: [
                ("content-type", content_type.clone()),
                ("webhook-id", id.clone()),
                ("webhook-timestamp", timestamp.to_string()),
                ("webhook-signature", signature),
            ],
            body: String::from_utf8(body.clone())?,
            good_until: Timestamp::from_timestamp(timestamp.saturating_add(WEBHOOK_TOLERANCE_SECONDS), 0),
        })
    }
}

impl Display for Signed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "curl {} \\", quoted(&self.url))?;
        for (name, value) in &self.headers {
            writeln!(out, "  --header {} \\", quoted(&format!("{name}: {value}")))?;
        }
        write!(out, "  --data-raw {}", quoted(&self.body))
    }
}

/// Quotes a text for shells: in single quotes nothing has a meaning but the quote itself.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_back_what_was_quoted() {
        for text in ["", "it's", "a\nb", r#"$(rm) `x` \ "y" !z"#, "''"] {
            let output = std::process::Command::new("sh").args(["-c", &format!("printf %s {}", quoted(text))]).output();
            assert_eq!(String::from_utf8(output.unwrap().stdout).unwrap(), text);
        }
    }
}
