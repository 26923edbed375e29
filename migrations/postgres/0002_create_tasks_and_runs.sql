-- `spec` is the whole definition as JSON; the columns beside it are what statements decide on.
CREATE TABLE tasks (
    id           uuid PRIMARY KEY,
    name         text        NOT NULL,
    spec         text        NOT NULL,
    has_schedule boolean     NOT NULL,
    is_active    boolean     NOT NULL,
    next_run_at  timestamptz,
    version      bigint      NOT NULL DEFAULT 1,
    parked       text,
    paused_at    timestamptz,
    created_at   timestamptz NOT NULL,
    updated_at   timestamptz NOT NULL,
    deleted_at   timestamptz
);
CREATE UNIQUE INDEX tasks_by_name ON tasks (name) WHERE deleted_at IS NULL;
CREATE INDEX tasks_due ON tasks (next_run_at)
    WHERE is_active AND deleted_at IS NULL AND parked IS NULL AND next_run_at IS NOT NULL;
-- Holds no row unless something is wrong.
CREATE INDEX tasks_unarmed ON tasks (id)
    WHERE has_schedule AND is_active AND deleted_at IS NULL AND next_run_at IS NULL;

CREATE TABLE task_skips (
    task_id uuid        NOT NULL,
    from_at timestamptz NOT NULL,
    to_at   timestamptz NOT NULL,
    count   bigint      NOT NULL,
    cause   text        NOT NULL,
    PRIMARY KEY (task_id, from_at, cause)
);
CREATE INDEX task_skips_by_end ON task_skips (to_at);

-- Narrow on purpose: what workers do not decide on is in `run_details`.
CREATE TABLE runs (
    id                  uuid PRIMARY KEY,
    task_id             uuid        NOT NULL,
    state               text        NOT NULL,
    trigger             text        NOT NULL,
    pool                text        NOT NULL,
    priority            smallint    NOT NULL,
    run_at              timestamptz NOT NULL,
    scheduled_for       timestamptz,
    attempt             integer     NOT NULL DEFAULT 0,
    max_attempts        integer     NOT NULL,
    fence               bigint      NOT NULL DEFAULT 0,
    leased_by           text,
    lease_until         timestamptz,
    timeout_ms          bigint,
    deadline_at         timestamptz,
    cancel_requested_at timestamptz,
    is_reclaimed        boolean     NOT NULL DEFAULT false,
    key                 text,
    key_max             integer,
    dedupe_key          text,
    created_at          timestamptz NOT NULL,
    started_at          timestamptz,
    finished_at         timestamptz
) WITH (fillfactor = 80);
CREATE UNIQUE INDEX runs_by_occurrence ON runs (task_id, scheduled_for) WHERE scheduled_for IS NOT NULL;
CREATE UNIQUE INDEX runs_by_dedupe_key ON runs (task_id, dedupe_key)
    WHERE dedupe_key IS NOT NULL AND state IN ('scheduled', 'queued', 'waiting', 'running');
CREATE INDEX runs_active_by_task ON runs (task_id)
    WHERE state IN ('scheduled', 'queued', 'waiting', 'running');
CREATE INDEX runs_by_task ON runs (task_id, id);
CREATE INDEX runs_ready ON runs (pool, priority, run_at, id) WHERE state = 'queued';
CREATE INDEX runs_future ON runs (run_at) WHERE state = 'scheduled';
CREATE INDEX runs_waiting ON runs (key, priority, run_at, id) WHERE state = 'waiting';
CREATE INDEX runs_leased ON runs (lease_until) WHERE state = 'running';
CREATE INDEX runs_ended ON runs (finished_at) WHERE finished_at IS NOT NULL;
-- What people look for; a run that succeeds never enters it.
CREATE INDEX runs_unsuccessful ON runs (state, id) WHERE state IN ('failed', 'cancelled', 'dead');

CREATE TABLE run_details (
    run_id uuid PRIMARY KEY,
    input  text,
    result text,
    error  text
);

-- Rows to lock, one per permit key.
CREATE TABLE run_keys (
    key text PRIMARY KEY
);

-- The permits that runs hold; never freed by time alone.
CREATE TABLE run_holds (
    key    text NOT NULL,
    run_id uuid NOT NULL,
    PRIMARY KEY (key, run_id)
);
CREATE INDEX run_holds_by_run ON run_holds (run_id);
