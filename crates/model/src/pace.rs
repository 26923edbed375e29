//! The rate limits of runs, while one pass hands runs out: who may start, and when the next may. Knows no store.

use std::collections::BTreeMap;

use crate::limit::Rate;
use crate::span::Span;

/// How a ready run stands to those of its pool that wait for the same rate limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    /// Nobody waits.
    Empty,
    /// Others wait, and it goes before them.
    Ahead,
    /// Others wait and go first.
    Behind,
}

impl Line {
    /// Reads whether the first one that waits goes before the run; `None` when nobody waits.
    #[must_use]
    pub const fn of(goes_first: Option<bool>) -> Self {
        match goes_first {
            None => Self::Empty,
            Some(false) => Self::Ahead,
            Some(true) => Self::Behind,
        }
    }
}

/// The arrival times of the rate limits that the runs of one pass need.
#[derive(Debug)]
pub struct Paces {
    now_us: i64,
    tats: BTreeMap<String, Tat>,
    wait: Option<Span>,
}

#[derive(Debug)]
struct Tat {
    us: Option<i64>,
    is_new: bool,
}

impl Paces {
    /// Knows the arrival times of keys as they are at `now_us`; a key that is missing was not used before. All times
    /// are microseconds on the clock of the database.
    #[must_use]
    pub fn new(now_us: i64, known: impl IntoIterator<Item = (String, i64)>) -> Self {
        let tats = known.into_iter().map(|(key, us)| (key, Tat { us: Some(us), is_new: false })).collect();
        Self { now_us, tats, wait: None }
    }

    /// Takes one unit for a run, unless the limit or those that go first hold it back.
    pub fn take(&mut self, key: &str, rate: &Rate, line: Line) -> bool {
        let tat = self.tats.entry(key.to_owned()).or_insert(Tat { us: None, is_new: false });
        let next = if line == Line::Behind { None } else { rate.take(tat.us, self.now_us, 1).1 };
        if next.is_some() {
            *tat = Tat { us: next, is_new: true };
        }
        if next.is_none() || line != Line::Empty {
            let wait = rate.take(tat.us, self.now_us, 1).0.retry_after;
            self.wait = Some(self.wait.map_or(wait, |known| known.min(wait)));
        }
        next.is_some()
    }

    /// Returns when the next unit comes for which somebody waits.
    #[must_use]
    pub const fn wait(&self) -> Option<Span> {
        self.wait
    }

    /// Returns the new arrival times, by key.
    pub fn taken(&self) -> impl Iterator<Item = (&str, i64)> {
        self.tats.iter().filter(|(_, tat)| tat.is_new).filter_map(|(key, tat)| Some((key.as_str(), tat.us?)))
    }
}

/// A group of runs that wait for the same rate limit in the same pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacedGroup {
    /// The rate of the one that goes first.
    pub rate: Rate,
    /// The arrival time of the limit, if it was used before.
    pub tat_us: Option<i64>,
    /// Runs under the limit that are ready in that pool already and have not taken their unit yet.
    pub queued: u32,
}

/// How long a group waits whose units are spoken for by runs that nobody has leased yet. Whoever leases them says when
/// the next ones may go, so this is only how often to look while nobody does.
const UNTAKEN: Span = Span::from_secs(5);

impl PacedGroup {
    /// Returns how many of the group may become ready now, which takes no unit yet.
    #[must_use]
    pub fn ready(&self, now_us: i64) -> u32 {
        self.rate.take(self.tat_us, now_us, 0).0.remaining.saturating_sub(self.queued)
    }

    /// Returns when the one after those may.
    #[must_use]
    pub fn wait(&self, now_us: i64) -> Span {
        let spoken_for = self.queued.saturating_add(self.ready(now_us));
        let wait = self.rate.take(self.tat_us, now_us, spoken_for.saturating_add(1)).0.retry_after;
        if self.ready(now_us) == 0 && self.rate.take(self.tat_us, now_us, 1).0.allowed {
            wait.max(UNTAKEN)
        } else {
            wait
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_000_000_000;

    fn rate(text: &str) -> Rate {
        text.parse().unwrap()
    }

    #[test]
    fn a_pass_takes_what_the_limit_has_and_says_when_the_next_unit_comes() {
        let mut paces = Paces::new(NOW, [("used".to_owned(), NOW + 50_000)]);
        let rate = rate("10/1s burst 2");
        assert_eq!([(); 3].map(|()| paces.take("new", &rate, Line::Empty)), [true, true, false]);
        assert_eq!(paces.wait(), Some(Span::from_millis(100)));
        assert_eq!([(); 2].map(|()| paces.take("used", &rate, Line::Empty)), [true, false]);
        assert_eq!(paces.wait(), Some(Span::from_millis(50)));
        assert_eq!(paces.taken().collect::<Vec<_>>(), [("new", NOW + 200_000), ("used", NOW + 150_000)]);
    }

    #[test]
    fn nobody_overtakes_those_that_wait() {
        let mut paces = Paces::new(NOW, []);
        let rate = rate("10/1s burst 2");
        assert!(!paces.take("a", &rate, Line::Behind));
        assert_eq!(paces.wait(), Some(Span::default()), "the one that waits may go at once");
        assert_eq!(paces.taken().count(), 0);
        assert!(paces.take("a", &rate, Line::Ahead));
        assert!(!Paces::new(NOW, []).take("a", &rate, Line::of(Some(true))));
    }

    #[test]
    fn nothing_is_to_be_waited_for_when_nobody_waits() {
        let mut paces = Paces::new(NOW, []);
        assert!(paces.take("a", &rate("10/1s burst 1"), Line::of(None)));
        assert_eq!(paces.wait(), None);
        assert!(Paces::new(NOW, []).take("a", &rate("10/1s burst 1"), Line::of(Some(false))));
    }

    #[test]
    fn a_group_becomes_ready_as_far_as_its_limit_goes() {
        let group = PacedGroup { rate: rate("100/1s burst 5"), tat_us: None, queued: 2 };
        assert_eq!((group.ready(NOW), group.wait(NOW)), (3, Span::from_millis(10)));
        let used = PacedGroup { tat_us: Some(NOW + 45_000), ..group };
        assert_eq!((used.ready(NOW), used.wait(NOW)), (0, Span::from_millis(25)), "two are ahead of the next");
        let full = PacedGroup { queued: 9, ..group };
        assert_eq!((full.ready(NOW), full.wait(NOW)), (0, UNTAKEN), "nobody leases what is ready");
    }
}
