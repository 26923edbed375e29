//! What the key of an external worker may do to runs that replicas hold: nothing.

use switchboard_client::ClientError;
use switchboard_model::run::RunState;
use switchboard_model::secret_text::SecretText;
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::rest::ApiKeyRequest;
use switchboard_model::wire::work::{FailKind, FailRequest, FinishRequest, HeartbeatRequest, ReleaseRequest};
use switchboard_testkit::Cluster;

use crate::fixtures::{create_task, ended, gated_task, on_both_databases, started, trigger};

on_both_databases! {
    a_worker_neither_renews_nor_ends_the_runs_of_replicas,
}

fn code<T>(answer: Result<T, ClientError>) -> Option<ErrorCode> {
    answer.err().and_then(|error| error.code())
}

async fn a_worker_neither_renews_nor_ends_the_runs_of_replicas(cluster: Cluster) {
    let task = create_task(cluster.any(), gated_task("held")).await;
    let run = started(cluster.any(), trigger(cluster.any(), task.id).await).await;
    let scopes = vec!["work:default".parse().unwrap()];
    let made = cluster.any().create_api_key(&ApiKeyRequest { name: "worker".to_owned(), scopes, ttl: None }).await;
    let worker = cluster.any().with_credential(Some(SecretText::from_presented(made.unwrap().secret)));

    // Even with the number of the lease, which everybody sees who may read runs.
    let fence = run.fence;
    let lease = Some("10m".parse().unwrap());
    let fail = FailRequest { fence, error: "no".to_owned(), kind: FailKind::Permanent, delay: None };
    let answers = [
        code(worker.heartbeat_run(run.id, HeartbeatRequest { fence, lease }).await),
        code(worker.finish_run(run.id, &FinishRequest { fence, result: None }).await),
        code(worker.fail_run(run.id, &fail).await),
        code(worker.release_run(run.id, ReleaseRequest { fence }).await),
    ];
    assert_eq!(answers, [Some(ErrorCode::NotFound); 4]);
    let unharmed = cluster.any().get_run(run.id).await.unwrap();
    assert_eq!((unharmed.state, unharmed.fence, &unharmed.leased_by), (RunState::Running, fence, &run.leased_by));
    cluster.open_gate();
    let run = ended(cluster.any(), run.id).await;
    assert_eq!((run.state, run.attempt), (RunState::Succeeded, 1));
}
