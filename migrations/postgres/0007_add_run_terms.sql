-- What a run takes from its task beside pool and priority, and the request that leased it.
ALTER TABLE runs
    ADD COLUMN is_pull       boolean NOT NULL DEFAULT false,
    ADD COLUMN lease_request uuid,
    ADD COLUMN start_by      timestamptz,
    ADD COLUMN pace_key      text,
    ADD COLUMN pace          text,
    ADD COLUMN is_paced      boolean NOT NULL DEFAULT false,
    ADD COLUMN keep_ms       bigint,
    ADD COLUMN prune_at      timestamptz;

DROP INDEX runs_ready;
CREATE INDEX runs_ready ON runs (pool, is_pull, priority, run_at, id) WHERE state = 'queued';
-- A waiting run waits for a permit of its key, or, when it is paced, for its rate limit.
DROP INDEX runs_waiting;
CREATE INDEX runs_waiting ON runs (key, priority, run_at, id) WHERE state = 'waiting' AND NOT is_paced;
CREATE INDEX runs_paced ON runs (pace_key, pool, is_pull, priority, run_at, id) WHERE state = 'waiting' AND is_paced;
-- Ready runs that have not taken a unit from their rate limit yet.
CREATE INDEX runs_pacing ON runs (pace_key, pool, is_pull) WHERE state = 'queued' AND pace_key IS NOT NULL;
CREATE INDEX runs_requested ON runs (lease_request) WHERE state = 'running' AND lease_request IS NOT NULL;
CREATE INDEX runs_start_by ON runs (start_by)
    WHERE start_by IS NOT NULL AND state IN ('scheduled', 'queued', 'waiting');
-- Runs with a retention of their own leave by `prune_at`, the others by the age that the operator configured.
DROP INDEX runs_ended;
CREATE INDEX runs_ended ON runs (finished_at) WHERE finished_at IS NOT NULL AND prune_at IS NULL;
CREATE INDEX runs_prunable ON runs (prune_at) WHERE prune_at IS NOT NULL;

-- How often a run was queued again after it had ended.
ALTER TABLE runs ADD COLUMN retries integer NOT NULL DEFAULT 0;

-- The schedule that a skipped range is counted by; NULL for the occurrences of the present one.
ALTER TABLE task_skips ADD COLUMN schedule text;
CREATE INDEX tasks_deleted ON tasks (deleted_at) WHERE deleted_at IS NOT NULL;

-- What a secret is for: `receive` verifies webhooks, `sign` signs the requests of an http action.
ALTER TABLE webhook_secrets ADD COLUMN purpose text NOT NULL DEFAULT 'receive';
