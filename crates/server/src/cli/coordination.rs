//! Commands about leases, once-keys and shared state.

use clap::Subcommand;
use switchboard_model::identity::{ClientKey, Namespace};
use switchboard_model::lease::LEASE_TTL;
use switchboard_model::once::{ONCE_LEASE, ONCE_TTL};
use switchboard_model::span::Span;
use switchboard_model::state::StateKey;

use super::Limit;

#[derive(Debug, Subcommand)]
pub(crate) enum LeaseCommand {
    /// Lists the leases that hold, by key.
    List {
        #[command(flatten)]
        limit: Limit,
    },
    /// Shows who holds a lease.
    Get {
        /// Its key.
        key: ClientKey,
    },
    /// Acquires a lease; fails when somebody else holds it.
    Acquire {
        /// Its key.
        key: ClientKey,
        #[command(flatten)]
        options: LeaseOptions,
    },
    /// Prolongs a lease.
    Renew {
        /// Its key.
        key: ClientKey,
        #[command(flatten)]
        held: LeaseHeld,
        /// How long it holds from now on.
        #[arg(long, value_name = "DURATION", default_value_t = LEASE_TTL)]
        ttl: Span,
    },
    /// Gives a lease back.
    Release {
        /// Its key.
        key: ClientKey,
        #[command(flatten)]
        held: LeaseHeld,
    },
    /// Takes a lease, whoever holds it.
    Seize {
        /// Its key.
        key: ClientKey,
        #[command(flatten)]
        options: LeaseOptions,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct LeaseOptions {
    /// Who will hold it; made by the server when absent.
    #[arg(long, value_name = "NAME")]
    pub(crate) holder: Option<ClientKey>,
    /// How long it holds unless it is renewed.
    #[arg(long, value_name = "DURATION", default_value_t = LEASE_TTL)]
    pub(crate) ttl: Span,
    /// JSON that the holder says about itself.
    #[arg(long, value_name = "JSON")]
    pub(crate) meta: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct LeaseHeld {
    /// Who holds it.
    #[arg(long, value_name = "NAME")]
    pub(crate) holder: ClientKey,
    /// The number of the hold.
    #[arg(long, value_name = "N")]
    pub(crate) fence: i64,
}

#[derive(Debug, Subcommand)]
pub(crate) enum OnceCommand {
    /// Shows how a key stands.
    Get {
        #[command(flatten)]
        key: OnceRef,
    },
    /// Claims a key, or shows what became of an earlier claim.
    Claim {
        #[command(flatten)]
        key: OnceRef,
        /// JSON that the key is claimed for, or a hash of it; the same key for another one is refused.
        #[arg(long, value_name = "JSON", default_value = "null")]
        request: String,
        /// How long the claimant has before the claim counts as unknown.
        #[arg(long, value_name = "DURATION", default_value_t = ONCE_LEASE)]
        lease: Span,
        /// How long the key is remembered.
        #[arg(long, value_name = "DURATION", default_value_t = ONCE_TTL)]
        ttl: Span,
        /// JSON that completes the key together with the claim.
        #[arg(long, value_name = "JSON")]
        result: Option<String>,
    },
    /// Completes a key.
    Complete {
        #[command(flatten)]
        key: OnceRef,
        /// The number of the claim.
        #[arg(long, value_name = "N")]
        fence: i64,
        /// JSON that later claims are answered with, or - for standard input.
        #[arg(default_value = "null")]
        result: String,
    },
    /// Gives a key up whose work was not done, so that it can be claimed again.
    Abandon {
        #[command(flatten)]
        key: OnceRef,
        /// The number of the claim.
        #[arg(long, value_name = "N")]
        fence: i64,
    },
    /// Takes a key over whose claimant is lost.
    TakeOver {
        #[command(flatten)]
        key: OnceRef,
        /// The number of the lost claim.
        #[arg(long, value_name = "N")]
        fence: i64,
        /// How long the new claimant has.
        #[arg(long, value_name = "DURATION", default_value_t = ONCE_LEASE)]
        lease: Span,
    },
    /// Deletes a completed key and shows what was in it, this one time.
    Consume {
        #[command(flatten)]
        key: OnceRef,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct OnceRef {
    /// The scope of the key.
    pub(crate) scope: Namespace,
    /// The key.
    pub(crate) key: ClientKey,
}

#[derive(Debug, Subcommand)]
pub(crate) enum StateCommand {
    /// Lists the keys of a namespace.
    List {
        /// The namespace.
        ns: Namespace,
        /// How the keys start.
        #[arg(long, default_value = "")]
        prefix: String,
        #[command(flatten)]
        limit: Limit,
    },
    /// Prints a value as it is; with --json all that is known of it.
    Get {
        /// Namespace and key.
        #[arg(value_name = "NS/KEY")]
        key: StateKey,
    },
    /// Stores a value.
    Put {
        /// Namespace and key.
        #[arg(value_name = "NS/KEY")]
        key: StateKey,
        /// The value in JSON, or - for standard input.
        value: String,
        /// The version that it takes the place of; 0 means that there must be none. Whatever is there when absent.
        #[arg(long, value_name = "N")]
        version: Option<i64>,
        /// How long it is kept; for good when absent.
        #[arg(long, value_name = "DURATION")]
        ttl: Option<Span>,
    },
    /// Deletes a value.
    Delete {
        /// Namespace and key.
        #[arg(value_name = "NS/KEY")]
        key: StateKey,
        /// Only this version.
        #[arg(long, value_name = "N")]
        version: Option<i64>,
    },
    /// Prints a value, and again whenever it changes, one line of JSON each; null when it is gone.
    Watch {
        /// Namespace and key.
        #[arg(value_name = "NS/KEY")]
        key: StateKey,
    },
}
