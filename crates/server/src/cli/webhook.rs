//! Commands about webhooks.

use clap::Subcommand;
use switchboard_model::identity::{ClientKey, TaskName};
use switchboard_model::ids::WebhookSecretId;
use switchboard_model::secret_text::SecretText;
use switchboard_model::span::Span;
use switchboard_model::task::TaskRef;
use switchboard_model::webhook::SecretPurpose;

use super::remote::secret;

#[derive(Debug, Subcommand)]
pub(crate) enum WebhookCommand {
    /// Makes a secret by which others sign what triggers a task, or the task signs what it sends; shows it this once.
    Add {
        /// The name or id of the task.
        task: TaskRef,
        /// What it is for: receive verifies webhooks that trigger the task, sign signs the requests that it sends.
        #[arg(long, default_value_t)]
        purpose: SecretPurpose,
        /// Takes over the secret that the other side has already, from standard input.
        #[arg(long)]
        secret_stdin: bool,
        /// How long the secret works, such as 90days; until it is deleted if absent.
        #[arg(long, value_name = "DURATION")]
        ttl: Option<Span>,
    },
    /// Lists the secrets of a task, without what is secret about them.
    List {
        /// The name or id of the task.
        task: TaskRef,
    },
    /// Deletes a secret of a task.
    Delete {
        /// The name or id of the task.
        task: TaskRef,
        /// The id of the secret.
        id: WebhookSecretId,
    },
    /// Prints a curl command that triggers a task; it is signed now and good for five minutes.
    Curl {
        /// The name of the task.
        task: TaskName,
        /// The secret; better given in the environment, where other users cannot see it.
        #[arg(
            long,
            env = "SWITCHBOARD_WEBHOOK_SECRET",
            hide_env_values = true,
            value_name = "SECRET",
            value_parser = secret
        )]
        secret: SecretText,
        /// What the run is given, as JSON; @FILE reads it from a file, - from standard input.
        #[arg(long, value_name = "JSON", default_value = "{}")]
        body: String,
        /// The identity of the message: deliveries with the same make one run; a new one if absent.
        #[arg(long, value_name = "ID")]
        id: Option<ClientKey>,
    },
}
