//! Commands about API keys.

use clap::Subcommand;
use switchboard_model::ids::ApiKeyId;
use switchboard_model::scope::Scope;
use switchboard_model::span::Span;

use super::Limit;

#[derive(Debug, Subcommand)]
pub(crate) enum ApiKeyCommand {
    /// Makes a key and prints it; it is shown this once.
    Create {
        /// What the key is called.
        #[arg(long)]
        name: String,
        /// What it may do, such as admin or tasks:write; may be given several times.
        #[arg(long = "scope", value_name = "SCOPE", required = true)]
        scopes: Vec<Scope>,
        /// How long it works, such as 90days; for ever if absent.
        #[arg(long, value_name = "DURATION")]
        ttl: Option<Span>,
    },
    /// Lists the keys, without their secrets.
    List {
        #[command(flatten)]
        limit: Limit,
    },
    /// Revokes a key.
    Revoke {
        /// The id of the key.
        id: ApiKeyId,
    },
}
