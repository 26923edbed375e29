//! Whether a token can be handed out; pure, so that every verdict has a test.

use switchboard_model::Timestamp;
use switchboard_model::span::Span;
use switchboard_model::token::TokenReading;
use switchboard_model::wire::secret::TokenAccessRequest;

/// How long an access token must still live when nobody says.
const MARGIN: Span = Span::from_secs(30);

/// What is to be done with a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It can be handed out.
    Usable,
    /// There must be another one first.
    TooOld,
    /// The provider gave none and is not asked for so long.
    BackingOff { error: String, seconds: u64 },
}

/// Judges a token for a caller who has seen the version `first_seen` first: whatever the provider gave since is handed
/// out as long as it lives, so that one request asks for one renewal.
pub(super) fn judge(reading: &TokenReading, first_seen: i64, wanted: &TokenAccessRequest) -> Verdict {
    let TokenReading { token, now } = reading;
    let lives = |at: &Timestamp, margin: Span| *at > *now + margin.to_delta();
    let is_refused = wanted.refused_version == Some(token.version);
    let is_alive = token.granted_at.is_some()
        && !is_refused
        && token.expires_at.as_ref().is_none_or(|at| lives(at, Span::default()));
    if is_alive && token.version != first_seen {
        return Verdict::Usable;
    }
    // A margin above half of the life would renew a new token at once, and always.
    let half_life = match (token.granted_at, token.expires_at) {
        (Some(from), Some(to)) => Span::from_millis((to - from).num_milliseconds().unsigned_abs() / 2),
        _ => Span::MAX,
    };
    let margin = wanted.min_ttl.unwrap_or(MARGIN).min(half_life);
    if is_alive && token.expires_at.as_ref().is_none_or(|at| lives(at, margin)) {
        return Verdict::Usable;
    }
    let is_being_renewed = token.refresh_until.is_some_and(|until| until > *now);
    let pause = token.retry_at.filter(|at| at > now).map(|at| at - *now);
    match pause {
        // It is renewed early, so that nobody has to wait for it.
        _ if is_alive && (is_being_renewed || pause.is_some()) => Verdict::Usable,
        Some(pause) => Verdict::BackingOff {
            error: token.last_error.clone().unwrap_or_else(|| "it is not known why".to_owned()),
            seconds: pause.num_seconds().unsigned_abs() + 1,
        },
        None => Verdict::TooOld,
    }
}

#[cfg(test)]
mod tests {
    use switchboard_model::ids::TokenId;
    use switchboard_model::sealed::Sealed;
    use switchboard_model::token::StoredToken;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_timestamp(1_700_000_000 + second, 0).unwrap()
    }

    /// A token of version 3 that was granted at second 0 and lives for a thousand seconds.
    fn read(second: i64, change: impl FnOnce(&mut StoredToken)) -> TokenReading {
        let provider = serde_json::from_str(r#"{"token_url":"https://id.example/token"}"#).unwrap();
        let mut token = StoredToken {
            id: TokenId::new(),
            name: "crm".parse().unwrap(),
            provider,
            sealed: Sealed(Vec::new()),
            version: 3,
            granted_at: Some(at(0)),
            expires_at: Some(at(1_000)),
            refresh_until: None,
            failures: 0,
            retry_at: None,
            last_error: None,
            created_at: at(0),
            updated_at: at(0),
        };
        change(&mut token);
        TokenReading { token, now: at(second) }
    }

    fn verdict(second: i64, change: impl FnOnce(&mut StoredToken)) -> Verdict {
        judge(&read(second, change), 3, &TokenAccessRequest::default())
    }

    #[test]
    fn a_token_is_renewed_before_it_expires() {
        assert_eq!(verdict(969, |_| {}), Verdict::Usable);
        assert_eq!(verdict(970, |_| {}), Verdict::TooOld);
        assert_eq!(verdict(2_000, |_| {}), Verdict::TooOld);
        assert_eq!(verdict(2_000, |token| token.expires_at = None), Verdict::Usable);
        assert_eq!(verdict(0, |token| (token.granted_at, token.expires_at) = (None, None)), Verdict::TooOld);
        let wanted = |min_ttl| TokenAccessRequest { min_ttl: Some(Span::from_secs(min_ttl)), ..Default::default() };
        assert_eq!(judge(&read(800, |_| {}), 3, &wanted(200)), Verdict::TooOld);
        assert_eq!(judge(&read(499, |_| {}), 3, &wanted(100_000)), Verdict::Usable, "half of its life is enough");
    }

    #[test]
    fn what_came_since_is_handed_out_while_it_lives() {
        let wanted = TokenAccessRequest::default();
        assert_eq!(judge(&read(999, |_| {}), 2, &wanted), Verdict::Usable);
        assert_eq!(judge(&read(1_000, |_| {}), 2, &wanted), Verdict::TooOld);
    }

    #[test]
    fn a_refused_token_is_not_handed_out_again() {
        let refused = |version| TokenAccessRequest { refused_version: Some(version), ..Default::default() };
        assert_eq!(judge(&read(0, |_| {}), 3, &refused(3)), Verdict::TooOld);
        assert_eq!(judge(&read(0, |_| {}), 3, &refused(2)), Verdict::Usable);
    }

    #[test]
    fn nobody_waits_for_a_renewal_that_comes_early_or_fails_early() {
        let held = |token: &mut StoredToken| token.refresh_until = Some(at(3_000));
        assert_eq!(verdict(980, held), Verdict::Usable);
        assert_eq!(verdict(1_000, held), Verdict::TooOld);
        let failed = |token: &mut StoredToken| {
            (token.retry_at, token.last_error) = (Some(at(1_010)), Some("no".to_owned()));
        };
        assert_eq!(verdict(980, failed), Verdict::Usable);
        assert_eq!(verdict(1_000, failed), Verdict::BackingOff { error: "no".to_owned(), seconds: 11 });
        assert_eq!(verdict(1_010, failed), Verdict::TooOld);
    }
}
