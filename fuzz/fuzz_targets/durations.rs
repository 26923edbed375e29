//! Durations and rates: what is read is written back as the same, and no rate gives more than it says.

#![no_main]

use libfuzzer_sys::fuzz_target;
use switchboard_model::limit::Rate;
use switchboard_model::span::Span;

fuzz_target!(|text: &str| {
    if let Ok(span) = text.parse::<Span>() {
        assert!(span <= Span::MAX);
        assert_eq!(span.to_string().parse::<Span>().ok(), Some(span), "{text:?} is {span}");
    }
    if let Ok(rate) = text.parse::<Rate>() {
        assert_eq!(rate.to_string().parse::<Rate>().ok(), Some(rate), "{text:?} is {rate}");
        let burst = rate.take(None, 0, rate.burst());
        assert!(burst.0.allowed);
        let next = rate.take(burst.1, 0, 1);
        assert!(!next.0.allowed);
        let later = i64::try_from(next.0.retry_after.as_millis()).unwrap_or(i64::MAX).saturating_mul(1_000);
        assert!(rate.take(burst.1, later, 1).0.allowed, "waiting as long as told is enough");
    }
});
