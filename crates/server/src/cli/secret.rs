//! Commands about named secrets, the keys that encrypt them, and tokens of providers.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use switchboard_model::identity::{SecretName, TokenName};
use switchboard_model::span::Span;
use switchboard_model::token::ClientAuth;

use super::Limit;

#[derive(Debug, Subcommand)]
pub(crate) enum SecretCommand {
    /// Sets a secret; the value is asked for, or comes from standard input or a file.
    Set {
        /// The name of the secret.
        name: SecretName,
        #[command(flatten)]
        value: ValueSource,
        /// Only replaces this version; 0 only makes a new secret.
        #[arg(long = "if-version", value_name = "N")]
        version: Option<i64>,
    },
    /// Lists the secrets, without their values.
    List {
        #[command(flatten)]
        limit: Limit,
    },
    /// Deletes a secret.
    Delete {
        /// The name of the secret.
        name: SecretName,
    },
    /// Shows which key encrypts how many stored values, and which keys can be removed.
    Keys,
    /// Brings everything that is stored under the first key of secrets.keys, and retires the other keys.
    Rewrap {
        /// The id of the key, where a replica is to go back to an earlier one; the current one if absent.
        #[arg(long, value_name = "KEY_ID")]
        to: Option<String>,
    },
    /// Gives up a key that is lost, with all that only it can decrypt, in the database itself: servers start again.
    RetireKey {
        /// The id of the key.
        key_id: String,
    },
}

/// Where a value comes from that nobody else is to see.
#[derive(Clone, Debug, Args)]
pub(crate) struct ValueSource {
    /// Reads the value from standard input; a line break at its end is left out.
    #[arg(long, conflicts_with = "value_file")]
    pub(crate) value_stdin: bool,
    /// Reads the value from a file; a line break at its end is left out.
    #[arg(long, value_name = "FILE")]
    pub(crate) value_file: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ProviderTokenCommand {
    /// Sets a token; the refresh token is asked for, or comes from standard input or a file.
    Set {
        /// The name of the token.
        name: TokenName,
        /// The token endpoint of the provider.
        #[arg(long, value_name = "URL")]
        token_url: String,
        /// Who the server is to the provider.
        #[arg(long, value_name = "ID")]
        client_id: Option<String>,
        /// The name of the secret by which it proves it.
        #[arg(long, value_name = "SECRET_NAME")]
        client_secret: Option<SecretName>,
        /// How it does: basic in a header, form in the form that is sent.
        #[arg(long, default_value_t)]
        client_auth: ClientAuth,
        /// What the token is to be good for, as the provider names it.
        #[arg(long)]
        scope: Option<String>,
        /// There is no refresh token: the server asks in its own name.
        #[arg(long, conflicts_with_all = ["value_stdin", "value_file"])]
        client_credentials: bool,
        #[command(flatten)]
        value: ValueSource,
    },
    /// Lists the tokens, without what is secret about them.
    List {
        #[command(flatten)]
        limit: Limit,
    },
    /// Shows a token, without what is secret about it.
    Get {
        /// The name of the token.
        name: TokenName,
    },
    /// Prints an access token, a renewed one if the present one is too old.
    Access {
        /// The name of the token.
        name: TokenName,
        /// How long it must still live; 30s if absent.
        #[arg(long, value_name = "DURATION")]
        min_ttl: Option<Span>,
        /// The version of an access token that was refused where it was presented.
        #[arg(long, value_name = "N")]
        refused_version: Option<i64>,
    },
    /// Deletes a token.
    Delete {
        /// The name of the token.
        name: TokenName,
    },
}
