//! What every command has in common that talks to a server.

use std::convert::Infallible;

use clap::{Args, Subcommand};
use switchboard_model::api_key::API_KEY_PREFIX;
use switchboard_model::secret_text::SecretText;

/// The address of a server that was started without settings.
const DEFAULT_URL: &str = "http://127.0.0.1:8080";

/// Where and as whom a command works, and for whom it prints.
#[derive(Clone, Debug, Args)]
pub(crate) struct Remote {
    /// The address of a replica or a balancer; http://127.0.0.1:8080 when absent.
    #[arg(long, global = true, env = "SWITCHBOARD_URL", value_name = "URL")]
    url: Option<String>,
    /// The API key, or an access token; better given in the environment, where other users cannot see it.
    #[arg(
        long,
        global = true,
        env = "SWITCHBOARD_API_KEY",
        hide_env_values = true,
        value_name = "KEY",
        value_parser = secret
    )]
    pub(crate) api_key: Option<SecretText>,
    /// Prints JSON for programs, as the API gives it.
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

impl Remote {
    /// Returns the address to talk to.
    pub(crate) fn url(&self) -> &str {
        self.url.as_deref().unwrap_or(DEFAULT_URL)
    }

    /// Tells whether the credential is an API key; otherwise it is an access token, or there is none.
    pub(crate) fn has_key(&self) -> bool {
        self.api_key.as_ref().is_some_and(|key| key.expose().starts_with(API_KEY_PREFIX))
    }

    /// Tells whether a server was named in any way.
    pub(crate) fn is_given(&self) -> bool {
        self.url.is_some() || self.api_key.is_some()
    }
}

/// A noun whose commands talk to a server.
#[derive(Debug, Args)]
pub(crate) struct RemoteCommand<C: Subcommand> {
    #[command(flatten)]
    pub(crate) remote: Remote,
    #[command(subcommand)]
    pub(crate) command: C,
}

/// How much of a list is wanted.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Limit {
    /// The most rows.
    #[arg(long, short = 'n', value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) limit: u64,
}

#[expect(clippy::unnecessary_wraps, reason = "clap asks for a Result")]
pub(super) fn secret(text: &str) -> Result<SecretText, Infallible> {
    Ok(SecretText::from_presented(text.to_owned()))
}
