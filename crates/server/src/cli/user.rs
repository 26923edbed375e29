//! Commands about users.

use std::fmt;
use std::str::FromStr;

use clap::{Args, Subcommand};
use switchboard_model::identity::{NameError, UserId, UserName};
use switchboard_model::user::UserRole;

use super::Limit;

#[derive(Debug, Subcommand)]
pub(crate) enum UserCommand {
    /// Makes a user; asks for the password.
    Create {
        /// What the user signs in with, in lower case.
        name: UserName,
        /// What the user may do: admin, operator or user.
        #[arg(long, value_name = "ROLE", default_value_t = UserRole::User)]
        role: UserRole,
        /// The identity; made by the server if absent, the `sub` of the tokens for users of another issuer.
        #[arg(long, value_name = "ID")]
        id: Option<UserId>,
        #[command(flatten)]
        password: PasswordSource,
        /// Sets no password: the user has tokens of another issuer.
        #[arg(long, conflicts_with = "password_stdin")]
        no_password: bool,
    },
    /// Lists users.
    List {
        #[command(flatten)]
        limit: Limit,
    },
    /// Shows a user.
    Get {
        /// The id or the name.
        user: UserRef,
    },
    /// Takes all sign-ins, tokens and sockets of a user out of force, and refuses new ones.
    Disable {
        /// The id or the name.
        user: UserRef,
    },
    /// Lets a user sign in again.
    Enable {
        /// The id or the name.
        user: UserRef,
    },
    /// Changes what a user may do.
    SetRole {
        /// The id or the name.
        user: UserRef,
        /// What the user may do: admin, operator or user.
        role: UserRole,
    },
    /// Sets the password of a user and ends all their sessions; asks for it.
    SetPassword {
        /// The id or the name.
        user: UserRef,
        #[command(flatten)]
        password: PasswordSource,
    },
    /// Deletes a user with all their sessions.
    Delete {
        /// The id or the name.
        user: UserRef,
    },
    /// Lists the sign-in sessions of a user.
    Sessions {
        /// The id or the name.
        user: UserRef,
        #[command(flatten)]
        limit: Limit,
    },
    /// Signs a user out everywhere.
    EndSessions {
        /// The id or the name.
        user: UserRef,
    },
}

/// Where a password comes from.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct PasswordSource {
    /// Reads the password from standard input instead of asking for it.
    #[arg(long)]
    pub(crate) password_stdin: bool,
}

/// A user as people name one: by id, or by name where nobody has such an id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UserRef {
    pub(crate) id: Option<UserId>,
    pub(crate) name: Option<UserName>,
    text: String,
}

impl FromStr for UserRef {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (id, name) = (text.parse::<UserId>(), text.parse::<UserName>());
        if let (Err(error), Err(_)) = (&id, &name) {
            return Err(error.clone());
        }
        Ok(Self { id: id.ok(), name: name.ok(), text: text.to_owned() })
    }
}

impl fmt::Display for UserRef {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.text)
    }
}
