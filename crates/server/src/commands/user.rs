//! `user`: people who sign in.

use std::path::Path;

use anyhow::Result;
use switchboard_model::user::{User, UserEdit};
use switchboard_model::wire::auth::UserRequest;

use super::accounts::Accounts;
use super::listing::collect;
use super::stores::with_stores;
use super::{form, remotely, secret_input};
use crate::cli::{RemoteCommand, UserCommand};
use crate::config;
use crate::output::{Form, maybe, time};

/// Does one thing with users: in the database itself, as the first administrator needs it, or over HTTP.
pub(crate) async fn run(command: RemoteCommand<UserCommand>, file: Option<&Path>) -> Result<()> {
    let RemoteCommand { remote, command } = command;
    if remote.is_given() {
        return remotely(&remote, async |session| obey(session.form, Accounts::Remote(&session.client), command).await)
            .await;
    }
    let config = config::load(file, &[])?;
    with_stores(&config, async |stores| obey(form(&remote), Accounts::Local(stores), command).await).await
}

async fn obey(form: Form, accounts: Accounts<'_>, command: UserCommand) -> Result<()> {
    match command {
        UserCommand::Create { name, role, id, password, no_password } => {
            let password = if no_password { None } else { Some(secret_input::new_password(password)?) };
            let made = accounts.create(UserRequest { id, name, password, role }).await?;
            form.done(&made, format_args!("Created user {} ({}).", made.name, made.id))
        }
        UserCommand::List { limit } => list(form, &collect(limit, async |page| accounts.list(page).await).await?),
        UserCommand::Get { user } => form.one(&accounts.find(&user).await?),
        UserCommand::Disable { user } => {
            let user = accounts.find(&user).await?;
            let user = accounts.edit(&user, UserEdit { role: user.role, is_disabled: true }).await?;
            form.done(&user, format_args!("Disabled user {}.", user.name))
        }
        UserCommand::Enable { user } => {
            let user = accounts.find(&user).await?;
            let user = accounts.edit(&user, UserEdit { role: user.role, is_disabled: false }).await?;
            form.done(&user, format_args!("Enabled user {}.", user.name))
        }
        UserCommand::SetRole { user, role } => {
            let user = accounts.find(&user).await?;
            let user = accounts.edit(&user, UserEdit { role, is_disabled: user.is_disabled }).await?;
            form.done(&user, format_args!("User {} is {} now.", user.name, user.role))
        }
        UserCommand::SetPassword { user, password } => {
            let user = accounts.find(&user).await?;
            accounts.set_password(&user, secret_input::new_password(password)?).await?;
            form.said(format_args!("Set the password of user {} and ended their sessions.", user.name))
        }
        UserCommand::Delete { user } => {
            let user = accounts.find(&user).await?;
            accounts.delete(&user).await?;
            form.said(format_args!("Deleted user {}.", user.name))
        }
        UserCommand::Sessions { user, limit } => {
            let id = accounts.find(&user).await?.id;
            let sessions = collect(limit, async |page| accounts.sessions(&id, page).await).await?;
            form.list(&sessions, ["ID", "CLIENT", "SIGNED IN", "REFRESHED", "EXPIRES"], |session| {
                [
                    session.id.to_string(),
                    maybe(session.client.as_ref()),
                    time(Some(session.created_at)),
                    time(Some(session.refreshed_at)),
                    time(Some(session.expires_at)),
                ]
            })
        }
        UserCommand::EndSessions { user } => {
            let user = accounts.find(&user).await?;
            accounts.end_sessions(&user.id).await?;
            form.said(format_args!("Signed user {} out everywhere.", user.name))
        }
    }
}

fn list(form: Form, users: &[User]) -> Result<()> {
    form.list(users, ["NAME", "ROLE", "STATE", "SIGNS IN BY", "CREATED", "ID"], |user| {
        let state = if user.is_disabled { "disabled" } else { "active" };
        let way = if user.has_password { "password" } else { "another issuer" };
        [
            user.name.to_string(),
            user.role.to_string(),
            state.to_owned(),
            way.to_owned(),
            time(Some(user.created_at)),
            user.id.to_string(),
        ]
    })
}
