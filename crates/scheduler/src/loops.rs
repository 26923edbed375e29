//! The loops of the scheduler: a closed list of what runs on a replica of which role, and why it may
//! run on all of them at the same time.

use switchboard_model::instance::Role;
use switchboard_model::span::Span;

use crate::activation::{Activation, Exclusivity};
use crate::wake::Wake;

/// A loop of the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SchedulerLoop {
    /// Makes runs of due tasks.
    Fire,
    /// Makes runs ready whose time or permit has come.
    Promote,
    /// Takes runs away from holders that are gone.
    Recover,
    /// Lets take effect what applications have left in their own transactions.
    Relay,
    /// Looks for pools that have queued runs and no live worker.
    Coverage,
    /// Leases ready runs and starts them.
    Dispatch,
    /// Renews the leases of the runs that go on here.
    Heartbeat,
}

impl SchedulerLoop {
    /// Every loop.
    pub const ALL: [Self; 7] =
        [Self::Fire, Self::Promote, Self::Recover, Self::Relay, Self::Coverage, Self::Dispatch, Self::Heartbeat];

    /// Returns the loops of a replica with these roles.
    pub fn of(roles: &[Role]) -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|each| roles.contains(&each.role()))
    }

    /// Returns its name in logs, metrics and the console.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fire => "scheduler.fire",
            Self::Promote => "scheduler.promote",
            Self::Recover => "scheduler.recover",
            Self::Relay => "scheduler.relay",
            Self::Coverage => "scheduler.coverage",
            Self::Dispatch => "scheduler.dispatch",
            Self::Heartbeat => "scheduler.heartbeat",
        }
    }

    /// Returns the role of the replicas on which it runs.
    #[must_use]
    pub const fn role(self) -> Role {
        match self {
            Self::Fire | Self::Promote | Self::Recover | Self::Relay | Self::Coverage => Role::Scheduler,
            Self::Dispatch | Self::Heartbeat => Role::Worker,
        }
    }

    /// Returns why it may run on every replica.
    #[must_use]
    pub const fn exclusivity(self) -> Exclusivity {
        match self {
            Self::Fire => Exclusivity::Idempotent("a task advances by compare-and-set, an occurrence has one run"),
            Self::Promote => Exclusivity::Idempotent("a run changes its state once, permits are counted under a lock"),
            Self::Recover => Exclusivity::Idempotent("an expired lease is taken once, under the lock of its run"),
            Self::Relay => Exclusivity::Idempotent("an entry is taken out with what it brings about, under its lock"),
            Self::Coverage => Exclusivity::Idempotent("it only reads"),
            Self::Dispatch => Exclusivity::Leased,
            Self::Heartbeat => Exclusivity::PerProcess("it renews what this process holds"),
        }
    }

    /// Makes its activation. `lease` is the length of the leases of this replica.
    pub(crate) fn activation(self, wake: &Wake, lease: Span) -> Activation {
        let (period, jitter) = match self {
            // The feed says each second what is due, queued, waiting and left in the outbox; the period is a backstop.
            Self::Fire | Self::Promote | Self::Recover | Self::Relay | Self::Coverage | Self::Dispatch => {
                (Span::from_secs(30), 0.2)
            }
            Self::Heartbeat => (Span::from_millis(lease.as_millis() / 3), 0.0),
        };
        Activation { name: self.name(), exclusivity: self.exclusivity(), period, jitter, wake: wake.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_loop_declares_its_role_and_its_exclusivity() {
        let declared: Vec<_> = SchedulerLoop::ALL
            .into_iter()
            .map(|each| {
                let exclusivity = match each.exclusivity() {
                    Exclusivity::Leased => "leased",
                    Exclusivity::Idempotent(reason) => {
                        assert!(!reason.is_empty());
                        "idempotent"
                    }
                    Exclusivity::PerProcess(reason) => {
                        assert!(!reason.is_empty());
                        "per process"
                    }
                };
                (each.name(), each.role().as_str(), exclusivity)
            })
            .collect();
        assert_eq!(
            declared,
            [
                ("scheduler.fire", "scheduler", "idempotent"),
                ("scheduler.promote", "scheduler", "idempotent"),
                ("scheduler.recover", "scheduler", "idempotent"),
                ("scheduler.relay", "scheduler", "idempotent"),
                ("scheduler.coverage", "scheduler", "idempotent"),
                ("scheduler.dispatch", "worker", "leased"),
                ("scheduler.heartbeat", "worker", "per process"),
            ]
        );
    }

    #[test]
    fn leases_are_renewed_at_a_third_of_their_length() {
        let activation = SchedulerLoop::Heartbeat.activation(&Wake::default(), Span::from_secs(15));
        assert_eq!((activation.period, activation.jitter), (Span::from_secs(5), 0.0));
    }
}
