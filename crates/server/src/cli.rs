//! The command line, as declared to clap.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use switchboard_model::scope::Scope;
use switchboard_model::span::Span;

/// A durable scheduler and event bus on one SQLite file or on PostgreSQL with any number of replicas.
#[derive(Debug, Parser)]
#[command(name = "switchboard", version, arg_required_else_help = true)]
pub(crate) struct Cli {
    /// Configuration file (TOML); SWITCHBOARD_* variables and flags go before it.
    #[arg(long, global = true, env = "SWITCHBOARD_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Runs the server until it is told to stop.
    Serve(ServeFlags),
    /// Shows the whole thing at work: a real server on a temporary SQLite file, real ticks over a real socket.
    Demo(DemoOptions),
    /// Brings the database up to the schema of this binary.
    Migrate,
    /// Looks for what would make replicas unsafe; the exit code is 0 when nothing was found.
    Check(CheckOptions),
    /// Makes, lists and revokes API keys, in the database itself.
    #[command(subcommand)]
    ApiKey(ApiKeyCommand),
}

#[derive(Debug, Args)]
pub(crate) struct ServeFlags {
    /// Address to listen on, such as 127.0.0.1:8080.
    #[arg(long, value_name = "ADDRESS")]
    bind: Option<String>,
    /// Database: `sqlite:FILE` or `postgres://…`.
    #[arg(long, value_name = "URL")]
    database_url: Option<String>,
    /// `single` or `multi`.
    #[arg(long, value_name = "MODE")]
    replicas: Option<String>,
    /// What this replica does: api, scheduler, worker; comma-separated.
    #[arg(long, value_name = "LIST")]
    roles: Option<String>,
    /// The pools its worker serves; comma-separated.
    #[arg(long, value_name = "LIST")]
    pools: Option<String>,
}

impl ServeFlags {
    /// Returns the flags that were given, as configuration keys and values.
    pub(crate) fn overrides(&self) -> Vec<(&'static str, String)> {
        let pairs = [
            ("server.bind", &self.bind),
            ("database.url", &self.database_url),
            ("replicas", &self.replicas),
            ("roles", &self.roles),
            ("pools", &self.pools),
        ];
        pairs.into_iter().filter_map(|(key, value)| Some((key, value.clone()?))).collect()
    }
}

#[derive(Debug, Args)]
pub(crate) struct DemoOptions {
    /// Leaves the server running until it is interrupted.
    #[arg(long)]
    pub(crate) keep: bool,
    /// Shows the log of the server too.
    #[arg(long, short)]
    pub(crate) verbose: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CheckOptions {
    /// Prints the findings as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ApiKeyCommand {
    /// Makes a key and prints it; it is shown this once.
    Create {
        /// What the key is called.
        #[arg(long)]
        name: String,
        /// What it may do, such as admin or tasks:write; may be given several times.
        #[arg(long = "scope", required = true)]
        scopes: Vec<Scope>,
        /// How long it works, such as 90days; for ever if absent.
        #[arg(long)]
        ttl: Option<Span>,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
    /// Lists the keys, without their secrets.
    List {
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
    /// Revokes a key.
    Revoke {
        /// The id of the key.
        id: switchboard_model::ids::ApiKeyId,
    },
}
