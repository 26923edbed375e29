//! Which replica does what: from roles and pools to the loops, the pools and the surface of a replica.
//!
//! Pure. The kinds are closed: a new loop, role or kind of pool does not compile before it has a place here.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use switchboard_model::identity::PoolName;
use switchboard_model::instance::Role;
use switchboard_scheduler::{Exclusivity, SchedulerLoop};

/// A loop that runs in the background of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum SystemLoop {
    /// Reads the change feed.
    Feed,
    /// Appends the events that are published here.
    Publisher,
    /// Appends the chunks of the streams that are produced here, and ends streams whose producer is lost.
    Streams,
    /// Moves calls on that nobody claims.
    Calls,
    /// Keeps the rows of the sockets of this replica.
    Connections,
    /// Tells the sockets of this replica who comes and goes.
    Presence,
    /// Renews the row of this replica and sweeps those of the dead.
    Membership,
    /// Folds the samples of metrics.
    Metrics,
    /// A loop of the scheduler.
    Scheduler(SchedulerLoop),
}

/// On which replicas a loop runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// On all of them.
    Everywhere,
    /// On those with a role.
    Role(Role),
}

impl SystemLoop {
    /// The loops outside the scheduler.
    const BASE: [Self; 8] = [
        Self::Feed,
        Self::Publisher,
        Self::Streams,
        Self::Calls,
        Self::Connections,
        Self::Presence,
        Self::Membership,
        Self::Metrics,
    ];

    /// Returns every loop.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        Self::BASE.into_iter().chain(SchedulerLoop::ALL.map(Self::Scheduler))
    }

    /// Returns its name.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Feed => "events.feed",
            Self::Publisher => "events.publisher",
            Self::Streams => "events.streams",
            Self::Calls => "events.calls",
            Self::Connections => "events.connections",
            Self::Presence => "events.presence",
            Self::Membership => "server.membership",
            Self::Metrics => "server.metrics",
            Self::Scheduler(each) => each.name(),
        }
    }

    /// Returns where it runs.
    pub(crate) const fn place(self) -> Place {
        match self {
            // Runs publish and stream too, so a worker has all that carries events.
            Self::Feed
            | Self::Publisher
            | Self::Streams
            | Self::Calls
            | Self::Connections
            | Self::Presence
            | Self::Membership
            | Self::Metrics => Place::Everywhere,
            Self::Scheduler(each) => Place::Role(each.role()),
        }
    }

    /// Returns why it may run on all of these replicas at once.
    pub(crate) const fn exclusivity(self) -> Exclusivity {
        match self {
            Self::Feed => Exclusivity::PerProcess("each replica has read the feed up to a place of its own"),
            Self::Publisher => {
                Exclusivity::PerProcess("it appends what was published here; rooms are locked one by one")
            }
            Self::Streams => Exclusivity::Idempotent("chunks carry the fence of their producer, a stream ends once"),
            Self::Calls => Exclusivity::Idempotent("a call moves on by compare-and-set, and ends once"),
            Self::Connections => Exclusivity::PerProcess("each replica keeps the rows of its own sockets"),
            Self::Presence => Exclusivity::PerProcess("each replica tells its own sockets"),
            Self::Membership => Exclusivity::Idempotent("an expired row is re-checked under its lock and deleted once"),
            Self::Metrics => Exclusivity::PerProcess("each replica has its own metrics"),
            Self::Scheduler(each) => each.exclusivity(),
        }
    }
}

/// A pool of runs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RunPool {
    /// That of upkeep, which every worker serves.
    System,
    /// One that people named; `default` is the one of tasks that name none.
    Named(PoolName),
}

impl RunPool {
    fn of(name: &PoolName) -> Self {
        if name.as_str() == PoolName::SYSTEM { Self::System } else { Self::Named(name.clone()) }
    }
}

/// What a replica serves over HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Surface {
    /// The API, sockets and the console, beside probes and metrics.
    Everything,
    /// Probes and metrics alone.
    Probes,
}

/// What one replica does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Placement {
    pub(crate) loops: Vec<SystemLoop>,
    pub(crate) pools: BTreeSet<RunPool>,
    pub(crate) surface: Surface,
}

/// Decides what a replica with these roles does. `pools` are those that its worker serves, if it has one.
pub(crate) fn place(roles: &[Role], pools: &[PoolName]) -> Placement {
    let runs_here = |each: &SystemLoop| match each.place() {
        Place::Everywhere => true,
        Place::Role(role) => roles.contains(&role),
    };
    let mut placement = Placement {
        loops: SystemLoop::all().filter(runs_here).collect(),
        pools: BTreeSet::new(),
        surface: Surface::Probes,
    };
    for role in roles {
        match role {
            Role::Api => placement.surface = Surface::Everything,
            Role::Scheduler => {}
            Role::Worker => {
                placement.pools.insert(RunPool::System);
                placement.pools.extend(pools.iter().map(RunPool::of));
            }
        }
    }
    placement
}

/// A group of replicas with the same roles and pools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Deployment {
    pub(crate) roles: Vec<Role>,
    pub(crate) pools: Vec<PoolName>,
}

impl FromStr for Deployment {
    type Err = String;

    /// Reads `ROLE,…` or `ROLE,…/POOL,…`; without pools they are `default`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (roles, pools) = text.split_once('/').unwrap_or((text, "default"));
        let roles = roles.split(',').map(|role| role.trim().parse::<Role>().map_err(|error| error.to_string()));
        let pools = pools.split(',').map(|pool| pool.trim().parse::<PoolName>().map_err(|error| error.to_string()));
        Ok(Self { roles: roles.collect::<Result<_, _>>()?, pools: pools.collect::<Result<_, _>>()? })
    }
}

/// What nobody in a fleet does.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Gap {
    /// Nobody serves the API.
    Surface,
    /// Nobody runs the loops of a role.
    Loops(Role, Vec<&'static str>),
    /// No worker serves a pool.
    Pool(RunPool),
}

impl Gap {
    /// Tells whether only the runs of a pool that people named have nobody; a program outside may serve it.
    pub(crate) const fn is_named_pool(&self) -> bool {
        matches!(self, Self::Pool(RunPool::Named(_)))
    }
}

impl fmt::Display for Gap {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Surface => write!(out, "no replica has the role api, so nobody serves the API"),
            Self::Loops(role, loops) => {
                write!(out, "no replica has the role {role}, so nobody runs {}", loops.join(", "))
            }
            Self::Pool(RunPool::System) => write!(out, "no worker serves the pool {}", PoolName::SYSTEM),
            Self::Pool(RunPool::Named(pool)) => write!(out, "no worker serves the pool {pool}"),
        }
    }
}

/// Finds what nobody does when these deployments are the whole fleet. The pools are those that any of them names, and
/// `default`, in which tasks run that name none.
pub(crate) fn gaps(fleet: &[Deployment]) -> Vec<Gap> {
    let placements: Vec<_> = fleet.iter().map(|group| place(&group.roles, &group.pools)).collect();
    let mut gaps = Vec::new();
    if placements.iter().all(|placement| placement.surface == Surface::Probes) {
        gaps.push(Gap::Surface);
    }
    for role in Role::ALL {
        let loops = SystemLoop::all().filter(|each| each.place() == Place::Role(role));
        let missing = loops.filter(|each| !placements.iter().any(|placement| placement.loops.contains(each)));
        let missing: Vec<_> = missing.map(SystemLoop::name).collect();
        if !missing.is_empty() {
            gaps.push(Gap::Loops(role, missing));
        }
    }
    let named = fleet.iter().flat_map(|group| &group.pools).map(RunPool::of);
    let wanted: BTreeSet<_> = named.chain([RunPool::System, RunPool::Named(PoolName::default_pool())]).collect();
    let unserved = wanted.into_iter().filter(|pool| !placements.iter().any(|placement| placement.pools.contains(pool)));
    gaps.extend(unserved.map(Gap::Pool));
    gaps
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns every subset.
    fn subsets<T: Clone>(items: &[T]) -> Vec<Vec<T>> {
        let chosen = |mask: u32| items.iter().enumerate().filter(move |(bit, _)| mask & (1 << bit) != 0);
        (0..1_u32 << items.len()).map(|mask| chosen(mask).map(|(_, item)| item.clone()).collect()).collect()
    }

    fn pool(name: &str) -> PoolName {
        name.parse().unwrap()
    }

    #[test]
    fn every_loop_declares_its_place_and_its_exclusivity() {
        let declared: Vec<_> = SystemLoop::BASE
            .into_iter()
            .map(|each| {
                assert_eq!(each.place(), Place::Everywhere);
                match each.exclusivity() {
                    Exclusivity::Leased => (each.name(), "leased"),
                    Exclusivity::Idempotent(reason) if !reason.is_empty() => (each.name(), "idempotent"),
                    Exclusivity::PerProcess(reason) if !reason.is_empty() => (each.name(), "per process"),
                    other => panic!("{other:?} has no reason"),
                }
            })
            .collect();
        assert_eq!(
            declared,
            [
                ("events.feed", "per process"),
                ("events.publisher", "per process"),
                ("events.streams", "idempotent"),
                ("events.calls", "idempotent"),
                ("events.connections", "per process"),
                ("events.presence", "per process"),
                ("server.membership", "idempotent"),
                ("server.metrics", "per process"),
            ]
        );
        let names: BTreeSet<_> = SystemLoop::all().map(SystemLoop::name).collect();
        assert_eq!(names.len(), SystemLoop::all().count(), "no two loops have one name");
    }

    #[test]
    fn every_split_of_roles_and_pools_runs_everything_somewhere_or_is_refused() {
        let pools = [pool("default"), pool("heavy"), pool("light")];
        let of = |roles: Vec<Role>, pools: Vec<PoolName>| Deployment { roles, pools };
        let groups: Vec<_> = subsets(&Role::ALL)
            .into_iter()
            .flat_map(|roles| subsets(&pools).into_iter().map(move |pools| of(roles.clone(), pools)))
            .collect();
        let (mut complete, mut refused) = (0, 0);
        for (index, one) in groups.iter().enumerate() {
            for other in &groups[index..] {
                let fleet = [one.clone(), other.clone()];
                let placed = fleet.clone().map(|group| place(&group.roles, &group.pools));
                // What follows is said without the function under test: who has what, by roles and names alone.
                let has = |role: Role| fleet.iter().any(|group| group.roles.contains(&role));
                let served = |name: &PoolName| {
                    fleet.iter().any(|group| group.roles.contains(&Role::Worker) && group.pools.contains(name))
                };
                let named = |name: &PoolName| fleet.iter().any(|group| group.pools.contains(name));
                let is_complete = Role::ALL.into_iter().all(has)
                    && pools.iter().all(|name| served(name) || (name != &pools[0] && !named(name)));
                let gaps = gaps(&fleet);
                assert_eq!(gaps.is_empty(), is_complete, "{fleet:?}: {gaps:?}");
                if !is_complete {
                    refused += 1;
                    continue;
                }
                complete += 1;
                for each in SystemLoop::all() {
                    assert!(placed.iter().any(|placement| placement.loops.contains(&each)), "{each:?} in {fleet:?}");
                }
                assert!(placed.iter().any(|placement| placement.surface == Surface::Everything));
                assert!(placed.iter().any(|placement| placement.pools.contains(&RunPool::System)));
            }
        }
        assert!(complete > 100 && refused > 100, "{complete} complete, {refused} refused");
    }

    #[test]
    fn a_role_brings_what_belongs_to_it_and_nothing_else() {
        let names = |roles: &[Role]| {
            let placement = place(roles, &[pool("heavy")]);
            let own = placement.loops.into_iter().filter(|each| each.place() != Place::Everywhere);
            (own.map(SystemLoop::name).collect::<Vec<_>>(), placement.pools.len(), placement.surface)
        };
        assert_eq!(names(&[Role::Api]), (vec![], 0, Surface::Everything));
        let scheduler =
            ["scheduler.fire", "scheduler.promote", "scheduler.recover", "scheduler.relay", "scheduler.coverage"];
        assert_eq!(names(&[Role::Scheduler]), (scheduler.to_vec(), 0, Surface::Probes));
        let worker = vec!["scheduler.dispatch", "scheduler.heartbeat"];
        assert_eq!(names(&[Role::Worker]), (worker, 2, Surface::Probes));
    }

    #[test]
    fn a_deployment_is_read_from_its_text_and_unknown_names_are_refused() {
        let read = |text: &str| text.parse::<Deployment>();
        let expected = Deployment { roles: vec![Role::Api, Role::Worker], pools: vec![pool("heavy"), pool("light")] };
        assert_eq!(read("api, worker/heavy,light"), Ok(expected));
        assert_eq!(read("worker").unwrap().pools, [pool("default")]);
        for unknown in ["boss", "", "api,", "worker/", "worker/Not A Pool"] {
            assert!(read(unknown).is_err(), "{unknown}");
        }
        assert!(read("boss").unwrap_err().contains("unknown role \"boss\""));
    }
}
