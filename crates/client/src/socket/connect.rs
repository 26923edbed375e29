//! Opening a socket: the upgrade request, what its refusal says, and the first frame.

use std::io::{Error as IoError, ErrorKind};

use switchboard_model::wire::frame::NoticeFrame;
use switchboard_model::wire::{SUBPROTOCOL, TICKET_SUBPROTOCOL_PREFIX};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Error as WsError;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::handshake::client::Request;
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::tungstenite::http::header::{AUTHORIZATION, ORIGIN, SEC_WEBSOCKET_PROTOCOL};
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async_with_config};

use super::link::Link;
use super::{Socket, SocketAuth, SocketEvent, SocketHandle, SocketOptions};
use crate::client::{CONNECT_TIMEOUT, Client};
use crate::error::ClientError;

/// The largest message taken from a server: a full page of history with its frame around it.
const MESSAGE_BYTES: usize = 8 * 1024 * 1024;

/// How much is read or written at once; small, since a program may hold thousands of sockets.
const BUFFER_BYTES: usize = 8 * 1024;

impl Client {
    /// Opens a socket and waits for the server's first frame.
    ///
    /// # Errors
    /// See [`ClientError`]; the ticket may be used up even then.
    pub async fn connect(&self, options: SocketOptions) -> Result<Socket, ClientError> {
        let request = self.upgrade_request(&options)?;
        timeout(CONNECT_TIMEOUT, self.open(request, options.event_capacity))
            .await
            .map_err(|_| ClientError::transport(IoError::from(ErrorKind::TimedOut)))?
    }

    async fn open(&self, request: Request, event_capacity: usize) -> Result<Socket, ClientError> {
        let stream = upgrade(request).await?;
        // Zero is no capacity of a channel.
        let (sender, mut events) = mpsc::channel(event_capacity.max(1));
        let (link, stop) = Link::spawn(self.tracker(), stream, sender);
        let handle = SocketHandle { link };
        match events.recv().await {
            Some(SocketEvent::Notice(NoticeFrame::Hello(hello))) => Ok(Socket { handle, events, hello, _stop: stop }),
            Some(SocketEvent::Closed { code, reason }) => Err(ClientError::Closed { code, reason }),
            _ => Err(ClientError::transport("the first frame is not a hello")),
        }
    }

    fn upgrade_request(&self, options: &SocketOptions) -> Result<Request, ClientError> {
        let mut url = self.url(&["ws"]);
        if let SocketAuth::TicketInQuery(ticket) = &options.auth {
            url.query_pairs_mut().append_pair("ticket", ticket.expose());
        }
        // Both schemes are special and both are known to have a host, so the change is always accepted.
        let _ = url.set_scheme(if url.scheme() == "https" { "wss" } else { "ws" });
        let mut request = url.as_str().into_client_request().map_err(connect_error)?;
        let headers = request.headers_mut();
        let protocols = match &options.auth {
            SocketAuth::Ticket(ticket) => format!("{SUBPROTOCOL}, {TICKET_SUBPROTOCOL_PREFIX}{}", ticket.expose()),
            _ => SUBPROTOCOL.to_owned(),
        };
        headers.insert(SEC_WEBSOCKET_PROTOCOL, header(&protocols)?);
        if let SocketAuth::Bearer(credential) = &options.auth {
            headers.insert(AUTHORIZATION, header(&format!("Bearer {}", credential.expose()))?);
        }
        if let Some(origin) = &options.origin {
            headers.insert(ORIGIN, header(origin)?);
        }
        Ok(request)
    }
}

async fn upgrade(request: Request) -> Result<WebSocketStream<MaybeTlsStream<TcpStream>>, ClientError> {
    let config = WebSocketConfig::default()
        .read_buffer_size(BUFFER_BYTES)
        .write_buffer_size(BUFFER_BYTES)
        .max_message_size(Some(MESSAGE_BYTES))
        .max_frame_size(Some(MESSAGE_BYTES));
    // Boxed: the future of a TLS handshake is large.
    let connecting = Box::pin(connect_async_with_config(request, Some(config), true));
    connecting.await.map(|(stream, _)| stream).map_err(connect_error)
}

fn header(text: &str) -> Result<HeaderValue, ClientError> {
    HeaderValue::from_str(text).map_err(|_| ClientError::Url("a credential or origin is no header value".to_owned()))
}

fn connect_error(error: WsError) -> ClientError {
    match error {
        WsError::Http(answer) => {
            let body = answer.body().as_deref().unwrap_or_default();
            ClientError::refused(answer.status().as_u16(), body)
        }
        WsError::Url(error) => ClientError::Url(error.to_string()),
        error => ClientError::transport(error),
    }
}

#[cfg(test)]
mod tests {
    use switchboard_model::secret_text::SecretText;

    use super::*;
    use crate::client::ClientOptions;

    fn request(base_url: &str, auth: fn(SecretText) -> SocketAuth) -> Request {
        let client = Client::new(ClientOptions { base_url: base_url.into(), credential: None }).unwrap();
        let ticket = SecretText::from_presented("sbt_x".into());
        let options = SocketOptions { auth: auth(ticket), origin: Some("https://app".into()), event_capacity: 1 };
        client.upgrade_request(&options).unwrap()
    }

    #[test]
    fn credentials_go_where_the_options_say() {
        let subprotocol = request("https://host/below", SocketAuth::Ticket);
        assert_eq!(subprotocol.uri(), "wss://host/below/ws");
        assert_eq!(subprotocol.headers()[SEC_WEBSOCKET_PROTOCOL], "switchboard.v1, ticket.sbt_x");
        assert_eq!(subprotocol.headers()[ORIGIN], "https://app");
        let query = request("http://host:1", SocketAuth::TicketInQuery);
        assert_eq!(query.uri(), "ws://host:1/ws?ticket=sbt_x");
        assert_eq!(query.headers()[SEC_WEBSOCKET_PROTOCOL], "switchboard.v1");
        let bearer = request("http://host:1", SocketAuth::Bearer);
        assert_eq!(bearer.headers()[AUTHORIZATION], "Bearer sbt_x");
    }
}
