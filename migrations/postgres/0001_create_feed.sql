-- The change feed: one row per changed thing, written in the transaction that changes it.
CREATE TABLE signals (
    id   bigint GENERATED ALWAYS AS IDENTITY,
    xid  xid8        NOT NULL DEFAULT pg_current_xact_id(),
    kind text        NOT NULL,
    key  text        NOT NULL,
    pos  bigint      NOT NULL DEFAULT 0,
    body text,
    at   timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX signals_by_xid ON signals (xid);

-- Empty after a crash, which may reuse the transaction ids of unflushed transactions.
CREATE UNLOGGED TABLE feed_life (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    id       uuid NOT NULL
);

-- The snapshot of the latest deletion: what a reader has not seen of it is lost to that reader.
CREATE TABLE feed_horizon (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    snapshot pg_snapshot NOT NULL
);
INSERT INTO feed_horizon (snapshot) VALUES ('1:1:');

-- Snapshots of the last minutes, so that a deletion can use one that is old enough.
CREATE TABLE feed_snapshots (
    at       timestamptz PRIMARY KEY DEFAULT clock_timestamp(),
    snapshot pg_snapshot NOT NULL DEFAULT pg_current_snapshot()
);

-- Fences of runs, leases and streams: they never restart.
CREATE SEQUENCE fences;
