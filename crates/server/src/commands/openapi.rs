//! `openapi` and `asyncapi`: the descriptions of the HTTP surface and of the socket.

use anyhow::Result;

use super::remotely;
use crate::cli::Remote;
use crate::output;

/// Prints the OpenAPI document of this binary, or that of a server.
pub(crate) async fn openapi(remote: &Remote) -> Result<()> {
    if !remote.is_given() {
        return output::json(&switchboard_http::openapi_document());
    }
    remotely(remote, async |session| output::json(&session.client.openapi().await?)).await
}

/// Prints the AsyncAPI document of this binary, or that of a server.
pub(crate) async fn asyncapi(remote: &Remote) -> Result<()> {
    if !remote.is_given() {
        return output::json(&switchboard_http::asyncapi_document());
    }
    remotely(remote, async |session| output::json(&session.client.asyncapi().await?)).await
}
