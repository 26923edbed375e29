//! Pages and scripts that are made from the program itself.

use clap::CommandFactory as _;
use clap_markdown::MarkdownOptions;

use crate::cli::{Cli, ReferencePage};
use crate::{config, output};

/// Prints a page of the reference.
pub(crate) fn reference(page: ReferencePage) -> anyhow::Result<()> {
    let text = match page {
        ReferencePage::Configuration => config::reference(),
        ReferencePage::Cli => command_line(),
    };
    output::line(text.trim_end())
}

fn command_line() -> String {
    let options = MarkdownOptions::new().title("Command line".to_owned()).show_footer(false);
    clap_markdown::help_markdown_command_custom(&Cli::command(), &options)
}

/// Prints the completion script of a shell.
pub(crate) fn completions(shell: clap_complete::Shell) -> anyhow::Result<()> {
    // Made in memory: clap panics where a reader goes away.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "switchboard", &mut script);
    output::line(String::from_utf8(script)?.trim_end())
}
