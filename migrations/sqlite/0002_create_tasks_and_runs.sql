-- `spec` is the whole definition as JSON; the columns beside it are what statements decide on.
CREATE TABLE tasks (
    id                  BLOB    PRIMARY KEY,
    name                TEXT    NOT NULL,
    spec                TEXT    NOT NULL,
    has_schedule        INTEGER NOT NULL,
    is_active           INTEGER NOT NULL,
    next_run_at         INTEGER,
    version             INTEGER NOT NULL DEFAULT 1,
    parked              TEXT,
    paused_at           INTEGER,
    created_at          INTEGER NOT NULL,
    updated_at          INTEGER NOT NULL,
    deleted_at          INTEGER
) STRICT;
CREATE UNIQUE INDEX tasks_by_name ON tasks (name) WHERE deleted_at IS NULL;
CREATE INDEX tasks_due ON tasks (next_run_at)
    WHERE is_active AND deleted_at IS NULL AND parked IS NULL AND next_run_at IS NOT NULL;
-- Holds no row unless something is wrong.
CREATE INDEX tasks_unarmed ON tasks (id)
    WHERE has_schedule AND is_active AND deleted_at IS NULL AND next_run_at IS NULL;

CREATE TABLE task_skips (
    task_id             BLOB    NOT NULL,
    from_at             INTEGER NOT NULL,
    to_at               INTEGER NOT NULL,
    count               INTEGER NOT NULL,
    cause               TEXT    NOT NULL,
    PRIMARY KEY (task_id, from_at, cause)
) STRICT;
CREATE INDEX task_skips_by_end ON task_skips (to_at);

-- Narrow on purpose: what workers do not decide on is in `run_details`.
CREATE TABLE runs (
    id                  BLOB    PRIMARY KEY,
    task_id             BLOB    NOT NULL,
    state               TEXT    NOT NULL,
    trigger             TEXT    NOT NULL,
    pool                TEXT    NOT NULL,
    priority            INTEGER NOT NULL,
    run_at              INTEGER NOT NULL,
    scheduled_for       INTEGER,
    attempt             INTEGER NOT NULL DEFAULT 0,
    max_attempts        INTEGER NOT NULL,
    fence               INTEGER NOT NULL DEFAULT 0,
    leased_by           TEXT,
    lease_until         INTEGER,
    timeout_ms          INTEGER,
    deadline_at         INTEGER,
    cancel_requested_at INTEGER,
    is_reclaimed        INTEGER NOT NULL DEFAULT 0,
    key                 TEXT,
    key_max             INTEGER,
    dedupe_key          TEXT,
    created_at          INTEGER NOT NULL,
    started_at          INTEGER,
    finished_at         INTEGER
) STRICT;
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

CREATE TABLE run_details (
    run_id              BLOB    PRIMARY KEY,
    input               TEXT,
    result              TEXT,
    error               TEXT
) STRICT;

-- Rows to lock, one per permit key.
CREATE TABLE run_keys (
    key                 TEXT    PRIMARY KEY
) STRICT;

-- The permits that runs hold; never freed by time alone.
CREATE TABLE run_holds (
    key                 TEXT    NOT NULL,
    run_id              BLOB    NOT NULL,
    PRIMARY KEY (key, run_id)
) STRICT;
CREATE INDEX run_holds_by_run ON run_holds (run_id);
