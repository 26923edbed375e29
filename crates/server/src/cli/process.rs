//! Commands about server processes.

use clap::Args;

use crate::placement::Deployment;

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
    /// Schedules follow a clock that only the API moves: from INSTANT (RFC 3339) on, or from now. For tests.
    #[arg(long, value_name = "INSTANT", num_args = 0..=1, require_equals = true, default_missing_value = "now")]
    test_clock: Option<String>,
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
            ("scheduler.test_clock", &self.test_clock),
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
    /// Looks at the deployments of a planned fleet, and not at this replica and its database: whether every role is
    /// held and every named pool is served. Once for each deployment: its roles, and after a slash the pools of its
    /// workers, such as `api` or `scheduler,worker/default,heavy`.
    #[arg(long = "deployment", value_name = "ROLES[/POOLS]")]
    pub(crate) deployments: Vec<Deployment>,
    /// Prints the findings as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use crate::check::Topic;
    use crate::cli::Cli;

    #[test]
    fn the_help_of_check_lists_every_exit_code() {
        let mut command = Cli::command();
        let help = command.find_subcommand_mut("check").unwrap().render_long_help().to_string();
        for topic in Topic::ALL {
            let line = format!("{} {}:", topic.exit_code(), topic.as_str());
            assert!(help.contains(&line), "{line} is missing in:\n{help}");
        }
    }
}
