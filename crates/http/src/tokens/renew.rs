//! One renewal: the right to ask, the question, and what is written of the answer.

use std::time::Duration;

use metrics::counter;
use switchboard_model::secret_text::SecretText;
use switchboard_model::span::Span;
use switchboard_model::token::{Granted, RefreshFailure, RefreshHold, StoredToken, TokenGrant, TokenReading};
use switchboard_store_api::StoreResult;
use tokio::time::{Instant, sleep};

use super::{TokenAnswer, TokenAsk, TokenAskError, TokenCache, TokenSecrets};
use crate::sealing::look_up;

/// How often a replica looks whether another one has renewed a token.
const POLL: Duration = Duration::from_millis(100);
/// How much longer than the provider may take the right to ask it lasts: for the answer to be written.
const WRITE_TIME: Duration = Duration::from_secs(5);
/// How long an answer of a provider waits for the database, which may be changing its server.
const WRITE_PATIENCE: Duration = Duration::from_secs(60);
/// How long nobody asks after a first failure; twice as long after each further one.
const FIRST_PAUSE: Span = Span::from_secs(1);
/// The longest pause, and the one after a refusal.
const LONGEST_PAUSE: Span = Span::from_secs(300);
/// The longest text of an error that is kept, in bytes.
const ERROR_BYTES: usize = 500;

const REFRESHES: &str = "switchboard_token_refreshes_total";
const OUTCOMES: [&str; 4] = ["granted", "refused", "failed", "late"];

/// Registers the metrics of renewals at zero.
pub(crate) fn describe_metrics() {
    for outcome in OUTCOMES {
        counter!(REFRESHES, "outcome" => outcome).increment(0);
    }
}

fn count(outcome: &'static str) {
    counter!(REFRESHES, "outcome" => outcome).increment(1);
}

impl TokenCache {
    /// Renews a token, or waits for whoever does; afterwards it is to be looked at again.
    pub(super) async fn renew(&self, reading: TokenReading) {
        if let Err(error) = self.try_renew(reading).await {
            tracing::warn!(%error, "a token cannot be renewed now");
            // Whoever waits looks at once; in an outage that is not to go round and round.
            sleep(POLL).await;
        }
    }

    async fn try_renew(&self, reading: TokenReading) -> StoreResult<()> {
        let TokenReading { token, now } = reading;
        let lease = self.timeout + WRITE_TIME;
        if token.refresh_until.is_none_or(|until| until <= now) {
            let lease_span = Span::from_millis(u64::try_from(lease.as_millis()).unwrap_or(u64::MAX));
            if let Some(fence) = self.tokens.hold_refresh(token.id, token.version, lease_span).await? {
                let hold = RefreshHold { id: token.id, version: token.version, fence };
                return self.ask_and_write(&token, hold).await;
            }
        }
        self.wait_for_others(&token).await
    }

    /// Waits until a token was renewed, could not be, is gone, or nobody renews it any more.
    async fn wait_for_others(&self, seen: &StoredToken) -> StoreResult<()> {
        loop {
            sleep(POLL).await;
            let Some(TokenReading { token, now }) = self.tokens.find(&seen.name).await? else { return Ok(()) };
            let is_held = token.refresh_until.is_some_and(|until| until > now);
            if token.version != seen.version || !is_held {
                return Ok(());
            }
        }
    }

    async fn ask_and_write(&self, token: &StoredToken, hold: RefreshHold) -> StoreResult<()> {
        match self.ask(token).await {
            Ok(grant) => self.write_grant(token, hold, &grant).await,
            Err(error) => {
                let failure = failure(token.failures, &error);
                count(if matches!(error, TokenAskError::Refused(_)) { "refused" } else { "failed" });
                tracing::warn!(token = %token.name, error = failure.error, "a provider gave no access token");
                self.tokens.fail_refresh(hold, &failure).await.map(drop)
            }
        }
    }

    /// Writes an answer. A refresh token that was used up is lost with it, so an outage of the database is waited for,
    /// also when the hold is over: a late answer counts unless somebody else has renewed the token.
    async fn write_grant(&self, token: &StoredToken, hold: RefreshHold, grant: &TokenGrant) -> StoreResult<()> {
        let until = Instant::now() + WRITE_PATIENCE;
        loop {
            match self.tokens.finish_refresh(hold, grant).await {
                Ok(is_written) => {
                    count(if is_written { "granted" } else { "late" });
                    return Ok(());
                }
                Err(error) if Instant::now() + POLL < until => {
                    tracing::warn!(token = %token.name, %error, "a renewed token cannot be written yet");
                    sleep(POLL).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Asks the provider, holding no connection to the database.
    async fn ask(&self, token: &StoredToken) -> Result<TokenGrant, TokenAskError> {
        let failed = |error: String| TokenAskError::Failed { error, after: None };
        let secrets = self.open(token).map_err(|error| failed(error.to_string()))?;
        let client_secret = match &token.provider.client_secret {
            None => None,
            Some(name) => {
                let found = look_up(&*self.secrets, &self.sealer, [name]).await;
                found.map_err(|error| failed(error.to_string()))?.remove(name)
            }
        };
        let refresh_token = secrets.refresh_token.clone().map(SecretText::from_presented);
        let ask = TokenAsk { provider: token.provider.clone(), client_secret, refresh_token, timeout: self.timeout };
        let asking = tokio::time::timeout(self.timeout, self.endpoint.ask(&ask));
        let answer = asking.await.unwrap_or_else(|_| Err(failed("the provider did not answer in time".to_owned())))?;
        if answer.expires_in.is_some_and(|life| life.as_millis() == 0) {
            // Whoever waits would ask for another one at once, and again.
            return Err(failed("the provider gave an access token that has expired already".to_owned()));
        }
        self.grant(token, secrets, answer).map_err(|error| failed(error.to_string()))
    }

    fn grant(
        &self,
        token: &StoredToken,
        before: TokenSecrets,
        answer: TokenAnswer,
    ) -> Result<TokenGrant, crate::sealing::SealError> {
        let refresh_token = answer.refresh_token.map(|token| token.expose().to_owned()).or(before.refresh_token);
        let secrets = TokenSecrets {
            access_token: Some(answer.access_token.expose().to_owned()),
            token_type: Some(answer.token_type),
            refresh_token,
        };
        let access = answer.expires_in.map_or(Granted::ForEver, Granted::For);
        Ok(TokenGrant { sealed: self.seal(token.id, &secrets)?, access })
    }
}

/// Says what is remembered of a failure after so many others in a row.
fn failure(failures: u32, error: &TokenAskError) -> RefreshFailure {
    let text = error.to_string();
    let text = &text[..text.floor_char_boundary(ERROR_BYTES)];
    let doubled = FIRST_PAUSE.as_millis().saturating_mul(1_u64.checked_shl(failures).unwrap_or(u64::MAX));
    let pause = match error {
        TokenAskError::Refused(_) => LONGEST_PAUSE,
        TokenAskError::Failed { after, .. } => Span::from_millis(doubled).max(after.unwrap_or_default()),
    };
    RefreshFailure {
        error: text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect(),
        pause: pause.min(LONGEST_PAUSE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_a_limit_and_a_refusal_makes_the_longest() {
        let failed = |after| TokenAskError::Failed { error: "no\nanswer".to_owned(), after };
        let pause = |failures, after| failure(failures, &failed(after)).pause;
        let seconds: Vec<_> = [0, 1, 5, 8, 9, 63, 64, 1_000].map(|count| pause(count, None).as_millis() / 1_000).into();
        assert_eq!(seconds, [1, 2, 32, 256, 300, 300, 300, 300]);
        assert_eq!(pause(0, Some(Span::from_secs(90))), Span::from_secs(90));
        assert_eq!(pause(0, Some(Span::from_secs(9_000))), LONGEST_PAUSE);
        assert_eq!(failure(0, &TokenAskError::Refused("no".to_owned())).pause, LONGEST_PAUSE);
        assert_eq!(failure(0, &failed(None)).error, "no answer");
    }
}
