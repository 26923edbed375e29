//! Users over HTTP, or in the database itself, where the first administrator comes from.

use std::fmt::Display;

use anyhow::{Context as _, Result, bail};
use serde::Serialize;
use serde_json::json;
use switchboard_client::Client;
use switchboard_http::Hashing;
use switchboard_model::auth_session::AuthSession;
use switchboard_model::identity::{UserId, UserName};
use switchboard_model::json_text::JsonText;
use switchboard_model::page::{Page, PageRequest};
use switchboard_model::user::{NewUser, PasswordHash, User, UserEdit};
use switchboard_model::wire::auth::{Password, PasswordRequest, UserRequest, UserUpdate};
use switchboard_model::wire::code::ErrorCode;
use switchboard_store_api::{PasswordChange, Stores, UserCreateOutcome, UserUpdateOutcome, WriteContext};

use super::stores::change;
use crate::cli::UserRef;

/// Where accounts are looked after.
#[derive(Clone, Copy)]
pub(super) enum Accounts<'a> {
    /// On a server.
    Remote(&'a Client),
    /// In the database itself.
    Local(&'a Stores),
}

impl Accounts<'_> {
    /// Finds a user by id, or by name where nobody has such an id.
    pub(super) async fn find(self, wanted: &UserRef) -> Result<User> {
        if let Some(id) = &wanted.id
            && let Some(user) = self.by_id(id).await?
        {
            return Ok(user);
        }
        if let Some(name) = &wanted.name
            && let Some(user) = self.by_name(name).await?
        {
            return Ok(user);
        }
        Err(nobody(wanted))
    }

    async fn by_id(self, id: &UserId) -> Result<Option<User>> {
        match self {
            Self::Remote(client) => match client.get_user(id).await {
                Err(error) if error.code() == Some(ErrorCode::NotFound) => Ok(None),
                found => Ok(Some(found?)),
            },
            Self::Local(stores) => Ok(stores.users.get(id).await?),
        }
    }

    async fn by_name(self, name: &UserName) -> Result<Option<User>> {
        match self {
            Self::Remote(client) => Ok(client.find_user(name).await?),
            Self::Local(stores) => Ok(stores.users.find_login(name).await?.map(|login| login.user)),
        }
    }

    /// Makes a user.
    pub(super) async fn create(self, request: UserRequest) -> Result<User> {
        match self {
            Self::Remote(client) => Ok(client.create_user(&request).await?),
            Self::Local(stores) => create(stores, request).await,
        }
    }

    /// Reads a page of all users.
    pub(super) async fn list(self, page: PageRequest) -> Result<Page<User>> {
        match self {
            Self::Remote(client) => Ok(client.list_users(page).await?),
            Self::Local(stores) => Ok(stores.users.list(&page).await?),
        }
    }

    /// Edits a user, unless somebody did since they were read.
    pub(super) async fn edit(self, user: &User, edit: UserEdit) -> Result<User> {
        let UserEdit { role, is_disabled } = edit;
        match self {
            Self::Remote(client) => {
                let update = UserUpdate { version: user.version, role, is_disabled };
                Ok(client.update_user(&user.id, &update).await?)
            }
            Self::Local(stores) => {
                let after = json!({"role": role, "is_disabled": is_disabled});
                let context = change("user.update", &user.id, Some(encoded(user)?), Some(encoded(&after)?));
                match stores.users.update(&context, &user.id, user.version, &edit).await? {
                    UserUpdateOutcome::Updated(user) => Ok(user),
                    UserUpdateOutcome::NotFound => Err(nobody(&user.id)),
                    UserUpdateOutcome::VersionMismatch(_) => bail!("{} was edited in between; try again", user.name),
                }
            }
        }
    }

    /// Sets the password of a user and ends all their sessions.
    pub(super) async fn set_password(self, user: &User, new: Password) -> Result<()> {
        match self {
            Self::Remote(client) => {
                Ok(client.set_user_password(&user.id, &PasswordRequest { current: None, new }).await?)
            }
            Self::Local(stores) => {
                let context = change("user.set_password", &user.id, None, None);
                done(stores.users.set_password(&context, &user.id, &PasswordChange::to(hashed(&new)?)).await?, &user.id)
            }
        }
    }

    /// Deletes a user with all their sessions.
    pub(super) async fn delete(self, user: &User) -> Result<()> {
        match self {
            Self::Remote(client) => Ok(client.delete_user(&user.id).await?),
            Self::Local(stores) => {
                let context = change("user.delete", &user.id, Some(encoded(user)?), None);
                done(stores.users.delete(&context, &user.id).await?, &user.id)
            }
        }
    }

    /// Reads a page of the sign-in sessions of a user.
    pub(super) async fn sessions(self, user: &UserId, page: PageRequest) -> Result<Page<AuthSession>> {
        match self {
            Self::Remote(client) => Ok(client.list_user_sessions(user, page).await?),
            Self::Local(stores) => Ok(stores.auth_sessions.list(user, &page).await?),
        }
    }

    /// Ends all sign-in sessions of a user.
    pub(super) async fn end_sessions(self, user: &UserId) -> Result<()> {
        match self {
            Self::Remote(client) => Ok(client.end_user_sessions(user).await?),
            Self::Local(stores) => {
                let context = change("user.end_sessions", user, None, None);
                stores.auth_sessions.end_all(&context, user, None).await?;
                Ok(())
            }
        }
    }
}

async fn create(stores: &Stores, request: UserRequest) -> Result<User> {
    let UserRequest { id, name, password, role } = request;
    let id = id.map_or_else(|| uuid::Uuid::now_v7().to_string().parse(), Ok)?;
    let password = password.as_ref().map(hashed).transpose()?;
    let new = NewUser { id, name, role, password };
    let after = json!({"id": new.id, "name": new.name, "role": new.role, "has_password": new.password.is_some()});
    let context: WriteContext = change("user.create", &new.id, None, Some(encoded(&after)?));
    match stores.users.create(&context, &new).await?.now() {
        Some(UserCreateOutcome::Created(user)) => Ok(user),
        Some(UserCreateOutcome::Taken(other)) => bail!("user {other} has this name, or this id, already"),
        None => bail!("the user was made by an earlier request"),
    }
}

fn hashed(password: &Password) -> Result<PasswordHash> {
    Hashing::default().hash(password).context("the password cannot be hashed")
}

fn encoded(value: &impl Serialize) -> Result<JsonText> {
    Ok(JsonText::encode(value)?)
}

fn done(was_there: bool, user: &UserId) -> Result<()> {
    if was_there { Ok(()) } else { Err(nobody(user)) }
}

fn nobody(user: &impl Display) -> anyhow::Error {
    anyhow::anyhow!("there is no user {user}; see `switchboard user list`")
}
