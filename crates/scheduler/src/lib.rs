//! The scheduler of a replica: it fires due tasks, leases runs, executes them, renews and finishes
//! their leases, recovers what others lost, and promotes what became ready.
//!
//! Every replica does all of it at the same time and none leads: each step is one atomic operation of
//! the store, and losing it to another replica is ordinary. It knows no bus, no HTTP and no database:
//! what a run does comes in as [`ActionRunner`]s, and what changed comes in through a
//! [`SchedulerObserver`].

mod actions;
mod activation;
mod coverage;
mod dispatch;
mod execute;
mod finish;
mod fire;
mod heartbeat;
mod lease;
mod loops;
mod meters;
mod observer;
mod place;
mod promote;
mod pull;
mod recover;
mod relay;
mod replay;
mod scheduler;
mod sweep;
mod system;
mod wake;

pub use actions::{ActionError, ActionRunner, OutputSink, RunOutput};
pub use activation::{Activation, Activity, Exclusivity, LoopHandle, LoopStatus};
pub use loops::SchedulerLoop;
pub use meters::describe_metrics;
pub use observer::SchedulerObserver;
pub use pull::{PullQueue, PullRequest};
pub use replay::{Replay, ReplayError, ReplayPatience};
pub use scheduler::{Scheduler, SchedulerHandle, SchedulerOptions};
pub use sweep::HistoryAges;
pub use system::{REWRAP_SECRETS, SystemRegistry, SystemRunner, install_system_tasks};
pub use wake::Wake;
