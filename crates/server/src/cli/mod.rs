//! The command line, as declared to clap; one file for each noun.

mod api_key;
mod audit;
mod clock;
mod coordination;
mod event;
mod fleet;
mod process;
mod remote;
mod room;
mod run;
mod secret;
mod session;
mod stream;
mod task;
mod token;
mod user;
mod webhook;
mod work;

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};

pub(crate) use self::api_key::ApiKeyCommand;
pub(crate) use self::audit::AuditCommand;
pub(crate) use self::clock::{ClockCommand, OutboxCommand};
pub(crate) use self::coordination::{LeaseCommand, LeaseHeld, LeaseOptions, OnceCommand, OnceRef, StateCommand};
pub(crate) use self::event::{CallCommand, PublishCommand, Start, TailCommand};
pub(crate) use self::fleet::FleetCommand;
pub(crate) use self::process::{CheckOptions, DemoOptions, ServeFlags};
pub(crate) use self::remote::{Limit, Remote, RemoteCommand};
pub(crate) use self::room::{RoomCommand, RoomVisibility};
pub(crate) use self::run::RunCommand;
pub(crate) use self::secret::{ProviderTokenCommand, SecretCommand, ValueSource};
pub(crate) use self::session::SessionCommand;
pub(crate) use self::stream::{Content, EndState, StreamCommand};
pub(crate) use self::task::{DocumentFormat, Documents, PreviewSource, TaskCommand};
pub(crate) use self::token::{KeyKind, TokenCommand};
pub(crate) use self::user::{PasswordSource, UserCommand, UserRef};
pub(crate) use self::webhook::WebhookCommand;
pub(crate) use self::work::{Held, WorkCommand};

/// A durable scheduler and event bus on one SQLite file or on PostgreSQL with any number of replicas.
#[derive(Debug, Parser)]
#[command(name = "switchboard", version, arg_required_else_help = true)]
pub(crate) struct Cli {
    /// Configuration file (TOML) of commands that run a server or open the database; SWITCHBOARD_* variables and flags
    /// go before it.
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
    ///
    /// A boot looks for the same, and ends with the same exit codes: for what cannot work always, for what is unsafe if
    /// `strict` is set. Otherwise it logs what it found and sets the metric `switchboard_safety_findings`. The codes, of
    /// which the first of the worst findings counts:
    ///
    /// - 10 database: `database.url` cannot be reached
    ///
    /// - 11 schema: a migration is damaged; a schema older or newer than the binary is a warning
    ///
    /// - 12 listen: LISTEN does not work, though `realtime.hints` asks for it
    ///
    /// - 13 connections: all live replicas together may open more than the server gives
    ///
    /// - 14 clock: the clock of the host is more than 5 s off that of the database
    ///
    /// - 15 replicas: `replicas` is `single` beside a live replica, or `multi` on SQLite
    ///
    /// - 16 keys: `auth.signing_keys` or `secrets.keys` are missing, or others than those of a live replica
    ///
    /// - 17 pooler: a transaction pooler without `database.pooled` or `database.direct_url`
    ///
    /// - 18 file: another process has the SQLite file
    ///
    /// - 19 coverage: a role that nobody has, or a pool that no worker serves
    ///
    /// - 20 state: a setting keeps in one process what replicas share
    Check(CheckOptions),
    /// Makes, lists and revokes API keys: in the database itself, or over HTTP when --url or --api-key is given.
    ApiKey(RemoteCommand<ApiKeyCommand>),
    /// Works with users: in the database itself, or over HTTP when --url or --api-key is given.
    User(RemoteCommand<UserCommand>),
    /// Signs users in, and makes the keys behind sign-in.
    Token(RemoteCommand<TokenCommand>),
    /// Works with tasks: what is to run, when, and under which policies.
    Task(RemoteCommand<TaskCommand>),
    /// Works with webhooks: signed requests from outside that trigger a task.
    Webhook(RemoteCommand<WebhookCommand>),
    /// Works with runs: executions of tasks.
    Run(RemoteCommand<RunCommand>),
    /// Executes runs of `pull` tasks, step by step: what an external worker says to a server.
    Work(RemoteCommand<WorkCommand>),
    /// Works with rooms and the events in them.
    Room(RemoteCommand<RoomCommand>),
    /// Works with streams: text or bytes of one producer that many follow, to a known end.
    Stream(RemoteCommand<StreamCommand>),
    /// Works with leases: named ownership that expires.
    Lease(RemoteCommand<LeaseCommand>),
    /// Works with once-keys: claimed before something that must not happen twice.
    Once(RemoteCommand<OnceCommand>),
    /// Works with shared state: small values that are changed by compare-and-set.
    State(RemoteCommand<StateCommand>),
    /// Shows and closes the open sockets of all replicas.
    Session(RemoteCommand<SessionCommand>),
    /// Works with secrets, which tasks send without anybody reading them, and with the keys that encrypt what is stored.
    Secret(RemoteCommand<SecretCommand>),
    /// Works with tokens of providers (OAuth 2.0), which the server renews.
    ProviderToken(RemoteCommand<ProviderTokenCommand>),
    /// Publishes an event to a room or a user.
    Publish(PublishCommand),
    /// Asks one client of a user and prints its answer.
    Call(CallCommand),
    /// Follows rooms over a socket and prints each event as it arrives.
    Tail(TailCommand),
    /// Steers all replicas at once: pauses execution, and limits pools.
    Fleet(RemoteCommand<FleetCommand>),
    /// Shows the replicas of the fleet.
    Instance(RemoteCommand<InstanceCommand>),
    /// Reads the audit log: who changed what, and when.
    Audit(RemoteCommand<AuditCommand>),
    /// Shows what applications left in their transactions on PostgreSQL and could not take effect.
    Outbox(RemoteCommand<OutboxCommand>),
    /// Shows and moves the clock of a server that was started with --test-clock.
    Clock(RemoteCommand<ClockCommand>),
    /// Prints the OpenAPI document of the HTTP surface: of this binary, or of a server when --url is given.
    Openapi(Remote),
    /// Prints the AsyncAPI document of the socket: of this binary, or of a server when --url is given.
    Asyncapi(Remote),
    /// Prints the script that completes this command line in a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Prints a page of the documentation that is made from the program.
    #[command(hide = true)]
    Reference {
        /// Which page.
        page: ReferencePage,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum InstanceCommand {
    /// Lists the replicas that are alive, oldest first.
    List {
        #[command(flatten)]
        limit: Limit,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum ReferencePage {
    /// All settings.
    Configuration,
    /// All commands.
    Cli,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::Cli;

    #[test]
    fn the_declaration_is_consistent() {
        Cli::command().debug_assert();
    }
}
