//! Passwords and other secrets on their way in: asked for on the terminal without an echo, or piped.

use std::io::{IsTerminal as _, stdin};

use anyhow::{Context as _, Result, ensure};
use switchboard_model::wire::auth::Password;

use super::standard_input;
use crate::cli::PasswordSource;

/// Takes a password that somebody has.
pub(super) fn password(source: PasswordSource) -> Result<Password> {
    take("password", source.password_stdin, "--password-stdin").map(Password::new)
}

/// Takes a password that somebody will have; on a terminal it is typed twice.
pub(super) fn new_password(source: PasswordSource) -> Result<Password> {
    let password = password(source)?;
    let (least, most) = (Password::SHORTEST, Password::LONGEST);
    ensure!(password.has_allowed_length(), "the password must have {least} to {most} characters");
    if !source.password_stdin {
        ensure!(ask("password again")? == password.expose(), "the two passwords differ; nothing was changed");
    }
    Ok(password)
}

/// Takes a secret from standard input where `flag` says so, and asks for it otherwise.
pub(super) fn take(what: &str, is_piped: bool, flag: &str) -> Result<String> {
    if is_piped {
        let text = standard_input()?;
        return Ok(without_line_break(&text).to_owned());
    }
    ensure!(stdin().is_terminal(), "there is no terminal to ask for the {what}; pipe it in and give {flag}");
    ask(what)
}

/// Leaves out the line break at the end of a text.
pub(super) fn without_line_break(text: &str) -> &str {
    let text = text.strip_suffix('\n').unwrap_or(text);
    text.strip_suffix('\r').unwrap_or(text)
}

fn ask(what: &str) -> Result<String> {
    rpassword::prompt_password(format!("{what}: ")).with_context(|| format!("cannot ask for the {what}"))
}
