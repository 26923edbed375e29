//! Connections that die at every statement of the scheduler: each operation, repeated as the loops of the product do,
//! has its effect once.

mod bed;
mod replica;

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use switchboard_model::run::{Ending, LeasedRun, NewRun, RunState};
use switchboard_model::span::Span;
use switchboard_model::task::Task;
use switchboard_store_api::{StoreResult, Stores, WorkerKind};
use switchboard_testkit::proxy::{Cut, Direction, Ending as Fault, Unit};

use bed::{Bed, HELD};
use replica::{Replica, fire, lease_request, trigger};

/// How many trials share a database; as many belong to one test unless `SWITCHBOARD_TEST_TRIALS` asks for others.
const TRIALS_PER_BED: u64 = 20;
/// The most rounds in which a cut may strike.
const MOST_ROUNDS: u32 = 40;

const DIRECTIONS: [Direction; 2] = [Direction::ToServer, Direction::ToClient];

#[expect(clippy::disallowed_methods, reason = "the two knobs of this test")]
fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap())
}

/// Draws a cut that strikes within a round or two.
fn any_cut(random: &mut StdRng) -> Cut {
    let (unit, most) = [(Unit::Exchange, 25), (Unit::Message, 80), (Unit::Byte, 6_000)][random.random_range(0..3)];
    let ending = if random.random() { Fault::Close } else { Fault::Reset };
    Cut { direction: DIRECTIONS[random.random_range(0..2)], unit, after: random.random_range(0..most), ending }
}

/// Cuts connections of two replicas at work, one after the other; returns how many cuts struck.
async fn cut_at_work(seed: u64, trials: u64) -> u64 {
    let mut random = StdRng::seed_from_u64(seed);
    let bed = Bed::new().await;
    let tasks = bed.create_tasks().await;
    let mut replicas = [Replica::new(&bed, &mut random).await, Replica::new(&bed, &mut random).await];
    let mut struck = 0;
    for trial in 0..trials {
        bed.proxy.cut(any_cut(&mut random));
        let rounds = async |replica: &mut Replica| {
            for _ in 0..MOST_ROUNDS {
                replica.round(tasks.triggered.id, trial).await;
                if bed.proxy.has_struck() {
                    return;
                }
            }
        };
        let [a, b] = &mut replicas;
        tokio::join!(rounds(a), rounds(b));
        struck += u64::from(bed.proxy.disarm());
    }
    bed.settle(&tasks, &mut replicas).await;
    let triggered = replicas.iter().map(|replica| replica.triggered).sum();
    bed.check(&tasks, triggered).await;
    bed.check_reports(&replicas).await;
    struck
}

/// Makes trials, and checks that they were worth it. A failing one shows its seed.
async fn cut_anywhere(seed: u64, trials: u64) {
    let mut struck = 0;
    for first in (0..trials).step_by(usize::try_from(TRIALS_PER_BED).unwrap()) {
        let seed = seed.wrapping_add(first / TRIALS_PER_BED);
        println!("SWITCHBOARD_TEST_SEED={seed}");
        struck += cut_at_work(seed, TRIALS_PER_BED.min(trials - first)).await;
    }
    println!("{struck} of {trials} cuts struck");
    assert!(struck * 10 >= trials * 9, "most cuts strike: {struck} of {trials}");
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_cut_anywhere_lose_and_double_nothing() {
    let seed = number("SWITCHBOARD_TEST_SEED").unwrap_or_else(rand::random);
    cut_anywhere(seed, number("SWITCHBOARD_TEST_TRIALS").unwrap_or(TRIALS_PER_BED)).await;
}

// Tests of their own, so that none takes long on a slow machine.

#[tokio::test(flavor = "multi_thread")]
async fn more_connections_cut_anywhere_lose_and_double_nothing() {
    cut_anywhere(rand::random(), TRIALS_PER_BED).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn still_more_connections_cut_anywhere_lose_and_double_nothing() {
    cut_anywhere(rand::random(), TRIALS_PER_BED).await;
}

/// What the scheduler does to the database.
#[derive(Clone, Copy, Debug)]
enum Operation {
    Trigger,
    Fire,
    Lease,
    Renew,
    Finish,
    Recover,
    Promote,
}

/// What an operation works on.
struct Prepared {
    run: NewRun,
    held: Option<LeasedRun>,
}

impl Operation {
    /// Leaves something to do for the operation, without any fault.
    async fn prepare(self, bed: &Bed, task: &Task, nth: u64) -> Prepared {
        let run = replica::new_run(task.id);
        let stores = &bed.direct;
        match self {
            Self::Trigger => return Prepared { run, held: None },
            Self::Fire => {
                bed.create_due(&format!("due{nth}")).await;
                return Prepared { run, held: None };
            }
            Self::Lease | Self::Renew | Self::Finish | Self::Recover | Self::Promote => {
                trigger(stores, &run).await.unwrap();
            }
        }
        if matches!(self, Self::Lease) {
            return Prepared { run, held: None };
        }
        let length = if matches!(self, Self::Recover) { Span::from_millis(1) } else { HELD };
        let leased = stores.runs.lease(&lease_request(1, length)).await.unwrap().runs;
        let held = leased.into_iter().next().unwrap();
        assert_eq!(held.id, run.id);
        match self {
            Self::Recover => bed.wait_past(held.lease_until).await,
            Self::Promote => {
                let ending = Ending::Retry { error: "again".to_owned(), delay: Span::default() };
                stores.runs.finish(&[replica::finish_of(&held, ending)]).await.unwrap();
            }
            _ => {}
        }
        Prepared { run, held: Some(held) }
    }

    async fn perform(self, stores: &Stores, prepared: &Prepared) -> StoreResult<()> {
        let held = prepared.held.as_ref();
        match self {
            Self::Trigger => trigger(stores, &prepared.run).await,
            Self::Fire => fire(stores).await,
            Self::Lease => stores.runs.lease(&lease_request(1, Span::from_millis(20))).await.map(drop),
            Self::Renew => {
                stores.runs.renew(WorkerKind::Replica, &[replica::renewal_of(held.unwrap())], HELD).await.map(drop)
            }
            Self::Finish => {
                let finish = replica::finish_of(held.unwrap(), Ending::Succeeded(None));
                stores.runs.finish(&[finish]).await.map(drop)
            }
            Self::Recover => stores.runs.recover(10).await.map(drop),
            Self::Promote => stores.runs.promote(10).await.map(drop),
        }
    }
}

/// Cuts an operation before each of its requests and answers in turn; returns how many cuts struck.
async fn cut_everywhere(operation: Operation) -> u64 {
    let bed = Bed::new().await;
    let tasks = bed.create_tasks().await;
    bed.pause(&tasks).await;
    let mut random = StdRng::seed_from_u64(0);
    let mut replicas = [Replica::direct(&bed, &mut random)];
    let through = bed.through_proxy().await;
    let (mut prepared_so_far, mut struck) = (0, 0);
    for direction in DIRECTIONS {
        for after in 0.. {
            let prepared = operation.prepare(&bed, &tasks.keyed, prepared_so_far).await;
            prepared_so_far += 1;
            let ending = if after % 2 == 0 { Fault::Close } else { Fault::Reset };
            bed.proxy.cut(Cut { direction, unit: Unit::Exchange, after, ending });
            let mut tries = 1;
            while let Err(error) = operation.perform(&through, &prepared).await {
                assert!(error.is_transient(), "{operation:?} after {after} {direction:?}: {error:?}");
                tries += 1;
                assert!(tries < 10, "{operation:?} after {after} {direction:?}: {error:?}");
            }
            let has_struck = bed.proxy.disarm();
            bed.idle(&mut replicas).await;
            if matches!(operation, Operation::Finish) {
                let run = bed.direct.runs.get(prepared.run.id).await.unwrap().unwrap();
                assert_eq!((run.state, run.attempt), (RunState::Succeeded, 1), "after {after} {direction:?}");
            }
            if !has_struck {
                break;
            }
            struck += 1;
        }
    }
    bed.settle(&tasks, &mut replicas).await;
    let triggered = if matches!(operation, Operation::Fire) { 0 } else { prepared_so_far };
    bed.check(&tasks, triggered).await;
    struck
}

/// Cuts one operation everywhere, as a test of its own.
macro_rules! can_be_lost {
    ($($name:ident: $operation:ident),+ $(,)?) => {
        $(#[tokio::test(flavor = "multi_thread")]
        async fn $name() {
            let steps = cut_everywhere(Operation::$operation).await;
            assert!(steps >= 6, "it has requests and answers: {steps}");
        })+
    };
}

can_be_lost! {
    every_request_and_answer_of_a_trigger_can_be_lost: Trigger,
    every_request_and_answer_of_a_fire_can_be_lost: Fire,
    every_request_and_answer_of_a_lease_can_be_lost: Lease,
    every_request_and_answer_of_a_renewal_can_be_lost: Renew,
    every_request_and_answer_of_a_finish_can_be_lost: Finish,
    every_request_and_answer_of_a_recovery_can_be_lost: Recover,
    every_request_and_answer_of_a_promotion_can_be_lost: Promote,
}
