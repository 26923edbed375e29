//! External work over REST: leases of runs, heartbeats and endings.

use reqwest::Method;
use serde::Serialize;
use switchboard_model::identity::PoolName;
use switchboard_model::ids::RunId;
use switchboard_model::wire::work::{
    FailRequest, FinishRequest, HeartbeatRequest, HeartbeatResponse, PoolLeaseRequest, PoolLeaseResponse, PulledRun,
    ReleaseRequest, ReportResponse,
};

use crate::client::{Client, fetch};
use crate::error::ClientError;

impl Client {
    /// Leases runs of a pool, or waits for some. The same request again gives the same runs while their leases hold.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn lease_runs(&self, pool: &PoolName, request: &PoolLeaseRequest) -> Result<Vec<PulledRun>, ClientError> {
        let request = self.api(Method::POST, &["pools", pool.as_str(), "lease"]).json(request);
        let response: PoolLeaseResponse = fetch(request).await?;
        Ok(response.runs)
    }

    /// Says that a worker goes on with a run.
    ///
    /// # Errors
    /// See [`ClientError`]; the code is `fenced` when the lease was lost.
    pub async fn heartbeat_run(&self, id: RunId, request: HeartbeatRequest) -> Result<HeartbeatResponse, ClientError> {
        fetch(self.api(Method::POST, &["runs", &id.to_string(), "heartbeat"]).json(&request)).await
    }

    /// Reports that a run has succeeded.
    ///
    /// # Errors
    /// As [`Client::heartbeat_run`].
    pub async fn finish_run(&self, id: RunId, request: &FinishRequest) -> Result<ReportResponse, ClientError> {
        self.report(id, "finish", request).await
    }

    /// Reports that an attempt has failed.
    ///
    /// # Errors
    /// As [`Client::heartbeat_run`].
    pub async fn fail_run(&self, id: RunId, request: &FailRequest) -> Result<ReportResponse, ClientError> {
        self.report(id, "fail", request).await
    }

    /// Gives a run back; the attempt does not count.
    ///
    /// # Errors
    /// As [`Client::heartbeat_run`].
    pub async fn release_run(&self, id: RunId, request: ReleaseRequest) -> Result<ReportResponse, ClientError> {
        self.report(id, "release", &request).await
    }

    async fn report(&self, id: RunId, how: &str, request: &impl Serialize) -> Result<ReportResponse, ClientError> {
        fetch(self.api(Method::POST, &["runs", &id.to_string(), how]).json(request)).await
    }
}
