//! `openapi`: the description of the HTTP surface.

use anyhow::Result;

use super::remotely;
use crate::cli::Remote;
use crate::output;

/// Prints the document of this binary, or that of a server.
pub(crate) async fn run(remote: &Remote) -> Result<()> {
    if !remote.is_given() {
        return output::json(&switchboard_http::openapi_document());
    }
    remotely(remote, async |session| output::json(&session.client.openapi().await?)).await
}
