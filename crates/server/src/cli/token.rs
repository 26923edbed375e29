//! Commands about sign-in and the keys behind it.

use clap::{Subcommand, ValueEnum};
use switchboard_model::identity::UserName;

use super::PasswordSource;

#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Signs a user in and prints the access token, which goes where an API key goes; --json prints all tokens.
    Login {
        /// What the user signs in with.
        name: UserName,
        #[command(flatten)]
        password: PasswordSource,
    },
    /// Exchanges the latest refresh token, which is asked for, for new tokens; --json prints the next one, too.
    Refresh {
        /// Reads the refresh token from standard input instead of asking for it.
        #[arg(long)]
        token_stdin: bool,
    },
    /// Shows whose the access token or the API key is, and what it allows.
    Me,
    /// Ends the session of the access token.
    Logout {
        /// Ends all sessions of the user.
        #[arg(long)]
        everywhere: bool,
    },
    /// Makes a secret key and prints it as the configuration wants it; nothing is sent to a server.
    NewKey {
        /// What the key is for.
        #[arg(long, value_enum, default_value_t = KeyKind::Hs256)]
        kind: KeyKind,
        /// The id of the key, such as 2027-01; no two keys of a list have the same.
        #[arg(long, value_name = "NAME")]
        id: String,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum KeyKind {
    /// Signs access tokens by HMAC-SHA256; for auth.signing_keys.
    Hs256,
    /// Signs access tokens by Ed25519; for auth.signing_keys.
    Ed25519,
    /// Encrypts stored secrets; for secrets.keys.
    Secrets,
}
