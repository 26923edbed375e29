//! Why there is no server. Messages say what to do about it.

use std::path::PathBuf;
use std::{fmt, io};

use crate::environment::{BIN_VARIABLE, URL_VARIABLE};

/// Why no PostgreSQL server could be found, started or steered.
#[derive(Debug)]
#[non_exhaustive]
pub enum PostgresError {
    /// The machine has no server and no way to get one.
    NotFound,
    /// A program could not be run, or it failed.
    Program {
        /// What was run.
        program: String,
        /// What it said.
        detail: String,
    },
    /// A file or folder of the server is out of reach.
    File {
        /// Which one.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Only a server that was started here can be paused, stopped or restarted.
    NotStartedHere,
}

impl PostgresError {
    pub(crate) fn program(program: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::Program { program: program.into(), detail: detail.into() }
    }
}

impl fmt::Display for PostgresError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound => write!(
                out,
                "no PostgreSQL server: set {URL_VARIABLE} to a superuser's URL, or {BIN_VARIABLE} to the folder of \
                 initdb and postgres, or install the server package of your system, or start Docker"
            ),
            Self::Program { program, detail } => write!(out, "{program} failed: {}", detail.trim()),
            Self::File { path, source } => write!(out, "{}: {source}", path.display()),
            Self::NotStartedHere => write!(
                out,
                "this server was not started by the test run, so it cannot be steered: unset {URL_VARIABLE} or use \
                 PostgresServer::start"
            ),
        }
    }
}

impl std::error::Error for PostgresError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::File { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// Gives an I/O error the path that it is about.
pub(crate) trait AtPath<T> {
    fn at(self, path: &std::path::Path) -> Result<T, PostgresError>;
}

impl<T> AtPath<T> for io::Result<T> {
    fn at(self, path: &std::path::Path) -> Result<T, PostgresError> {
        self.map_err(|source| PostgresError::File { path: path.to_owned(), source })
    }
}
