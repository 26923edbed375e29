//! What the commands do that are no server; one file for each noun.

mod accounts;
mod api_key;
mod apply;
mod audit;
mod bulk;
mod call;
mod clock;
mod documents;
mod failure;
mod fleet;
mod instance;
mod lease;
mod listing;
mod migrate;
mod occurrences;
mod once;
mod openapi;
mod publish;
mod reference;
mod room;
mod run;
mod secret;
mod secret_input;
mod session;
mod state;
mod stores;
mod stream;
mod tail;
mod task;
mod token;
mod user;
mod webhook;
mod work;

use std::io::Read as _;

use anyhow::Context as _;
use switchboard_client::{Client, ClientOptions};
use switchboard_model::json_text::JsonText;

use crate::cli::Remote;
use crate::output::Form;

pub(crate) use self::api_key::run as api_key;
pub(crate) use self::audit::run as audit;
pub(crate) use self::call::run as call;
pub(crate) use self::clock::{outbox, run as clock};
pub(crate) use self::fleet::run as fleet;
pub(crate) use self::instance::run as instance;
pub(crate) use self::lease::run as lease;
pub(crate) use self::migrate::run as migrate;
pub(crate) use self::once::run as once;
pub(crate) use self::openapi::{asyncapi, openapi};
pub(crate) use self::publish::run as publish;
pub(crate) use self::reference::{completions, reference};
pub(crate) use self::room::run as room;
pub(crate) use self::run::run;
pub(crate) use self::secret::{run as secret, run_tokens as provider_token};
pub(crate) use self::session::run as session;
pub(crate) use self::state::run as state;
pub(crate) use self::stream::run as stream;
pub(crate) use self::tail::run as tail;
pub(crate) use self::task::run as task;
pub(crate) use self::token::run as token;
pub(crate) use self::user::run as user;
pub(crate) use self::webhook::run as webhook;
pub(crate) use self::work::run as work;

/// What a command that talks to a server works with.
struct Session {
    client: Client,
    form: Form,
}

/// Does work on a server; what fails is explained with what to do about it.
async fn remotely<T>(remote: &Remote, work: impl AsyncFnOnce(Session) -> anyhow::Result<T>) -> anyhow::Result<T> {
    let options = ClientOptions { base_url: remote.url().to_owned(), credential: remote.api_key.clone() };
    let session = async {
        let client = Client::new(options)?;
        work(Session { client, form: form(remote) }).await
    };
    session.await.map_err(|error| failure::explain(error, remote))
}

fn form(remote: &Remote) -> Form {
    if remote.json { Form::Programs } else { Form::People }
}

/// Reads JSON that stands on the command line, or on standard input for a dash.
fn json_argument(what: &str, text: String) -> anyhow::Result<JsonText> {
    let text = if text == "-" { standard_input()? } else { text };
    JsonText::parse(text.trim()).with_context(|| format!("the {what} is not usable; in a shell, quote it with '…'"))
}

fn standard_input() -> anyhow::Result<String> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).context("standard input cannot be read as text")?;
    Ok(text)
}
