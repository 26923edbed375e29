//! Asking a provider for an access token, as OAuth 2.0 says (RFC 6749, sections 2.3.1, 4.4, 5 and 6). Knows no store.

use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use reqwest::{Method, Url};
use serde::Deserialize;
use switchboard_http::{TokenAnswer, TokenAsk, TokenAskError, TokenEndpoint};
use switchboard_model::secret_text::SecretText;
use switchboard_model::span::Span;
use switchboard_model::token::ClientAuth;
use url::form_urlencoded::{Serializer, byte_serialize};

use crate::outbound::{Outbound, OutboundError, OutboundRequest, OutboundResponse};

/// The longest life of an access token that is believed.
const LONGEST_LIFE_SECONDS: u64 = 10 * 365 * 24 * 3600;

/// Asks providers by requests that are guarded as those of tasks are.
pub(crate) struct OAuthEndpoint(pub(crate) Outbound);

#[async_trait]
impl TokenEndpoint for OAuthEndpoint {
    async fn ask(&self, ask: &TokenAsk) -> Result<TokenAnswer, TokenAskError> {
        let request = request(ask).map_err(|error| TokenAskError::Refused(error.to_owned()))?;
        let response = self.0.send(request).await.map_err(|error| match error {
            OutboundError::Refused => TokenAskError::Refused(error.to_string()),
            OutboundError::Unanswered => TokenAskError::Failed { error: error.to_string(), after: None },
        })?;
        answer(&response)
    }
}

fn request(ask: &TokenAsk) -> Result<OutboundRequest, &'static str> {
    let provider = &ask.provider;
    let mut form = Serializer::new(String::new());
    match &ask.refresh_token {
        Some(token) => {
            form.append_pair("grant_type", "refresh_token").append_pair("refresh_token", token.expose());
        }
        None => {
            form.append_pair("grant_type", "client_credentials");
        }
    }
    if let Some(scope) = &provider.scope {
        form.append_pair("scope", scope);
    }
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-www-form-urlencoded"));
    headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
    let secret = ask.client_secret.as_ref().map(SecretText::expose);
    match (&provider.client_id, secret, provider.client_auth) {
        (None, ..) => {}
        (Some(id), Some(secret), ClientAuth::Basic) => {
            headers.insert(AUTHORIZATION, basic(id, secret).ok_or("the client secret cannot be sent")?);
        }
        (Some(id), secret, _) => {
            form.append_pair("client_id", id);
            if let Some(secret) = secret {
                form.append_pair("client_secret", secret);
            }
        }
    }
    let url = Url::parse(&provider.token_url).map_err(|_| "the provider has no usable URL")?;
    Ok(OutboundRequest { method: Method::POST, url, headers, body: Some(form.finish()), timeout: Some(ask.timeout) })
}

fn basic(id: &str, secret: &str) -> Option<HeaderValue> {
    let encoded = |text: &str| byte_serialize(text.as_bytes()).collect::<String>();
    let pair = STANDARD.encode(format!("{}:{}", encoded(id), encoded(secret)));
    let mut value = HeaderValue::from_str(&format!("Basic {pair}")).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// What a provider says of an access token.
#[derive(Deserialize)]
struct Success {
    access_token: String,
    #[serde(default)]
    token_type: Option<String>,
    #[serde(default)]
    refresh_token: Option<String>,
    #[serde(default)]
    expires_in: Option<Seconds>,
}

/// Seconds, which some providers write as a text. What is neither must not cost the tokens beside it.
#[derive(Deserialize)]
#[serde(untagged)]
enum Seconds {
    Number(f64),
    Text(String),
    Other(serde::de::IgnoredAny),
}

impl Seconds {
    fn read(self) -> Option<f64> {
        match self {
            Self::Number(seconds) => Some(seconds),
            Self::Text(text) => text.trim().parse().ok(),
            Self::Other(_) => None,
        }
    }
}

/// What it says of an error. Its description is left out: it is a text of somebody else.
#[derive(Deserialize)]
struct Refusal {
    error: String,
}

fn answer(response: &OutboundResponse) -> Result<TokenAnswer, TokenAskError> {
    let status = response.status;
    if status.is_success() {
        let failed =
            || TokenAskError::Failed { error: "the provider answered with no access token".to_owned(), after: None };
        let success: Success = serde_json::from_slice(&response.body).map_err(|_| failed())?;
        if success.access_token.is_empty() {
            return Err(failed());
        }
        return Ok(TokenAnswer {
            access_token: SecretText::from_presented(success.access_token),
            token_type: success.token_type.unwrap_or_else(|| "Bearer".to_owned()),
            refresh_token: success.refresh_token.filter(|text| !text.is_empty()).map(SecretText::from_presented),
            expires_in: success.expires_in.and_then(Seconds::read).and_then(life),
        });
    }
    let mut error = format!("the provider answered with status {}", status.as_u16());
    if let Ok(Refusal { error: code }) = serde_json::from_slice::<Refusal>(&response.body)
        && (1..=64).contains(&code.len())
        && code.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
    {
        error.push_str(&format!(" ({code})"));
    }
    if matches!(status.as_u16(), 408 | 425 | 429) || status.is_server_error() {
        return Err(TokenAskError::Failed { error, after: retry_after(response) });
    }
    error.push_str("; it is asked again after a while, and at once when the token is set anew");
    Err(TokenAskError::Refused(error))
}

/// Reads a life in seconds, which some providers write with a fraction; one that is over is none.
fn life(seconds: f64) -> Option<Span> {
    let life = Duration::try_from_secs_f64(seconds.max(0.0)).ok()?;
    Some(Span::from_secs(life.as_secs().min(LONGEST_LIFE_SECONDS)))
}

fn retry_after(response: &OutboundResponse) -> Option<Span> {
    let seconds = response.headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Span::from_secs(std::cmp::min(seconds, 24 * 3600)))
}

#[cfg(test)]
mod tests {
    use reqwest::StatusCode;

    use super::*;

    fn ask(provider: &str, refresh_token: Option<&str>) -> TokenAsk {
        TokenAsk {
            provider: serde_json::from_str(provider).unwrap(),
            client_secret: Some(SecretText::from_presented("s&cret".to_owned())),
            refresh_token: refresh_token.map(|text| SecretText::from_presented(text.to_owned())),
            timeout: Duration::from_secs(1),
        }
    }

    fn answered(status: u16, body: &str) -> Result<TokenAnswer, TokenAskError> {
        let status = StatusCode::from_u16(status).unwrap();
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, HeaderValue::from_static("7"));
        answer(&OutboundResponse { status, headers, body: body.as_bytes().to_vec() })
    }

    #[test]
    fn a_provider_is_asked_by_a_form_and_told_who_asks() {
        let by_header = r#"{"token_url":"https://id.example/t","client_id":"a b","client_secret":"n","scope":"x y"}"#;
        let sent = request(&ask(by_header, Some("r+1"))).unwrap();
        assert_eq!(sent.body.unwrap(), "grant_type=refresh_token&refresh_token=r%2B1&scope=x+y");
        assert_eq!(sent.headers[AUTHORIZATION], format!("Basic {}", STANDARD.encode("a+b:s%26cret")));
        let by_form =
            r#"{"token_url":"https://id.example/t","client_id":"a","client_secret":"n","client_auth":"form"}"#;
        let sent = request(&ask(by_form, None)).unwrap();
        assert_eq!(sent.body.unwrap(), "grant_type=client_credentials&client_id=a&client_secret=s%26cret");
        assert!(!sent.headers.contains_key(AUTHORIZATION));
    }

    #[test]
    fn an_answer_is_a_token_a_refusal_or_a_failure_and_no_text_of_others_is_kept() {
        let token = answered(200, r#"{"access_token":"a","expires_in":3599.5,"refresh_token":"","more":1}"#).unwrap();
        assert_eq!((token.access_token.expose(), token.token_type.as_str()), ("a", "Bearer"));
        assert_eq!((token.expires_in, token.refresh_token), (Some(Span::from_secs(3_599)), None));
        let life = |text: &str| {
            let body = format!(r#"{{"access_token":"a","refresh_token":"r","expires_in":{text}}}"#);
            let token = answered(200, &body).unwrap();
            assert_eq!(token.refresh_token.unwrap().expose(), "r", "whatever stands beside it");
            token.expires_in
        };
        assert_eq!(life(r#""3600""#), Some(Span::from_secs(3_600)), "some write a text");
        assert_eq!(life("-5"), Some(Span::from_secs(0)), "over, not for ever");
        assert_eq!((life("null"), life("[]"), life(r#""soon""#)), (None, None, None));
        for odd in ["", "{}", r#"{"access_token":""}"#, r#"{"access_token":7}"#] {
            assert!(matches!(answered(200, odd), Err(TokenAskError::Failed { .. })), "{odd}");
        }
        let text = |status, body: &str| answered(status, body).unwrap_err().to_string();
        let refused = text(400, r#"{"error":"invalid_grant","error_description":"hunter2"}"#);
        assert!(refused.starts_with("the provider answered with status 400 (invalid_grant); "), "{refused}");
        assert!(!text(400, r#"{"error":"hunter2 <script>"}"#).contains("hunter2"));
        assert!(matches!(answered(401, "{}"), Err(TokenAskError::Refused(_))));
        let busy = TokenAskError::Failed {
            error: "the provider answered with status 503".to_owned(),
            after: Some(Span::from_secs(7)),
        };
        assert_eq!(answered(503, "hunter2").unwrap_err(), busy);
    }
}
