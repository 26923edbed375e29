//! The environment variables that steer where the server comes from. Nothing else here reads the environment.

/// Names the variable with the URL of a running server, whose user may create databases and roles.
pub const URL_VARIABLE: &str = "SWITCHBOARD_TEST_PG_URL";

/// Names the variable with the folder of the server binaries to start.
pub const BIN_VARIABLE: &str = "SWITCHBOARD_TEST_PG_BIN";

/// Returns the value of a variable that is set and not empty.
pub(crate) fn variable(name: &str) -> Option<String> {
    #[expect(clippy::disallowed_methods, reason = "test tooling is steered by the environment, not by configuration")]
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
