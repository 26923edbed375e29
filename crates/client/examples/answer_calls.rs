//! A client that answers calls: what a user's application does with the questions of programs.
//!
//! `cargo run -p switchboard-client --example answer_calls -- http://127.0.0.1:8080 KEY USER`, with a key that may mint
//! tickets (`rooms:write`); then `switchboard call USER tool.reverse '"hello"'` prints `"olleh"`.

use std::sync::Arc;

use switchboard_client::{Client, ClientOptions, OpError, ResumeEvent, ResumeOptions, ResumingHandle, StopCause};
use switchboard_model::call::CallOffer;
use switchboard_model::json_text::JsonText;
use switchboard_model::secret_text::SecretText;
use switchboard_model::ticket::Grants;
use switchboard_model::wire::op::CallFailure;
use switchboard_model::wire::rest::TicketRequest;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, key, user] = arguments.as_slice() else { return Err("usage: answer_calls URL KEY USER".into()) };
    let credential = Some(SecretText::from_presented(key.clone()));
    let client = Client::new(ClientOptions { base_url: url.clone(), credential })?;

    // Each connection needs a ticket of its own; a real application asks its own server for it.
    let request = TicketRequest { user_id: Some(user.parse()?), origin: None, grants: Grants::default() };
    let tickets = Arc::new(move |replica: Client| {
        let request = request.clone();
        async move { replica.mint_ticket(&request).await }
    });
    let mut socket = client.resume(ResumeOptions { base_urls: vec![url.clone()], tickets })?;
    while let Some(event) = socket.next().await {
        match event {
            ResumeEvent::Connected { base_url, .. } => println!("waiting for calls at {base_url}"),
            ResumeEvent::Call(offer) => match answer(&socket, offer).await {
                Ok(()) => {}
                // Another tab was faster, or nobody waits any more.
                Err(error) => println!("not answered: {error}"),
            },
            ResumeEvent::Stopped(StopCause::Failed(error)) => return Err(error.into()),
            ResumeEvent::Stopped(StopCause::Closed { reason, .. }) => return Err(reason.into()),
            _ => {}
        }
    }
    Ok(())
}

/// Claims, then executes, then answers: in this order, so that of many tabs one executes.
async fn answer(socket: &ResumingHandle, offer: CallOffer) -> Result<(), OpError> {
    let token = socket.claim(offer.call_id).await?;
    println!("executing {}", offer.event);
    let answer = match offer.event.as_str() {
        "tool.reverse" => reverse(&offer.payload),
        other => Err(CallFailure { message: format!("there is no {other} here") }),
    };
    socket.reply(offer.call_id, token, answer).await
}

fn reverse(payload: &JsonText) -> Result<JsonText, CallFailure> {
    let failure = |error: serde_json::Error| CallFailure { message: error.to_string() };
    let text: String = payload.decode().map_err(failure)?;
    JsonText::encode(&text.chars().rev().collect::<String>()).map_err(failure)
}
