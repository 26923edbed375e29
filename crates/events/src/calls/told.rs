//! What one socket was told of calls: each offer once, and none before its hello. Pure.

use std::collections::HashMap;

use switchboard_model::Timestamp;
use switchboard_model::ids::{CallId, ConnectionId};
use switchboard_store_api::OfferedCall;

/// The most offers that are remembered; more stand open at the same time on no sane socket.
const REMEMBERED: usize = 256;

/// The offers of one socket.
#[derive(Debug)]
pub(crate) enum Told {
    /// The hello is not said yet; these came meanwhile.
    Before(Vec<OfferedCall>),
    /// Until when each call is offered to this socket, as it was told last.
    After(HashMap<CallId, Timestamp>),
}

impl Default for Told {
    fn default() -> Self {
        Self::Before(Vec::new())
    }
}

impl Told {
    /// Notes that the hello says what is `pending`; returns what came before and has not been said with it.
    pub(crate) fn greet(&mut self, connection: ConnectionId, pending: &[OfferedCall]) -> Vec<OfferedCall> {
        let own = pending.iter().filter(|offered| offered.connection == connection);
        let said = own.map(|offered| (offered.offer.call_id, offered.until)).collect();
        let Self::Before(early) = std::mem::replace(self, Self::After(said)) else { return Vec::new() };
        early.into_iter().filter(|offered| self.is_news(offered)).collect()
    }

    /// Tells whether the client is to be told of an offer now.
    pub(crate) fn is_news(&mut self, offered: &OfferedCall) -> bool {
        let said = match self {
            Self::Before(early) => {
                early.push(offered.clone());
                return false;
            }
            Self::After(said) => said,
        };
        if said.len() >= REMEMBERED
            && let Some(oldest) = said.iter().min_by_key(|(_, until)| **until).map(|(call, _)| *call)
        {
            said.remove(&oldest);
        }
        said.insert(offered.offer.call_id, offered.until) != Some(offered.until)
    }
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;
    use switchboard_model::call::CallOffer;
    use switchboard_model::json_text::JsonText;

    use super::*;

    fn offered(call_id: CallId, connection: ConnectionId, seconds: i64) -> OfferedCall {
        OfferedCall {
            user_id: "ann".parse().unwrap(),
            connection,
            until: Timestamp::default() + TimeDelta::seconds(seconds),
            offer: CallOffer {
                call_id,
                event: "tool.call".parse().unwrap(),
                payload: JsonText::null(),
                deadline_ms: 1,
            },
        }
    }

    #[test]
    fn an_offer_is_told_once_and_the_next_one_of_the_same_call_again() {
        let (call, me) = (CallId::new(), ConnectionId::new());
        let mut told = Told::default();
        assert_eq!(told.greet(me, &[]), []);
        assert!(told.is_news(&offered(call, me, 2)));
        assert!(!told.is_news(&offered(call, me, 2)));
        assert!(told.is_news(&offered(CallId::new(), me, 2)));
        assert!(told.is_news(&offered(call, me, 6)));
    }

    #[test]
    fn offers_wait_for_the_hello_and_are_not_told_beside_it() {
        let (me, other) = (ConnectionId::new(), ConnectionId::new());
        let (pending, early, elsewhere) = (CallId::new(), CallId::new(), CallId::new());
        let mut told = Told::default();
        assert!(!told.is_news(&offered(pending, me, 2)));
        assert!(!told.is_news(&offered(early, me, 3)));
        let hello = [offered(pending, me, 2), offered(elsewhere, other, 2)];
        assert_eq!(told.greet(me, &hello), [offered(early, me, 3)]);
        assert!(!told.is_news(&offered(pending, me, 2)));
        assert!(told.is_news(&offered(elsewhere, me, 4)), "it has come to this socket");
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let me = ConnectionId::new();
        let mut told = Told::default();
        told.greet(me, &[]);
        for n in 0..3 * i64::try_from(REMEMBERED).unwrap() {
            assert!(told.is_news(&offered(CallId::new(), me, n)));
        }
        let Told::After(said) = told else { panic!("the hello was said") };
        assert!(said.len() <= REMEMBERED);
    }
}
