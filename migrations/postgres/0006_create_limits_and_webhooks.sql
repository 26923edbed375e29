-- Theoretical arrival times (GCRA). Unlogged: after a crash, limits start anew.
CREATE UNLOGGED TABLE rate_limits (
    key text COLLATE "C" PRIMARY KEY,
    tat timestamptz NOT NULL
) WITH (fillfactor = 70);

CREATE TABLE webhook_secrets (
    id         uuid PRIMARY KEY,
    task_id    uuid        NOT NULL,
    sealed     bytea       NOT NULL,
    created_at timestamptz NOT NULL,
    expires_at timestamptz
);
CREATE INDEX webhook_secrets_by_task ON webhook_secrets (task_id, id);
CREATE INDEX webhook_secrets_by_expiry ON webhook_secrets (expires_at) WHERE expires_at IS NOT NULL;

-- What a request was answered with that makes something without an identity.
ALTER TABLE once ADD COLUMN result text;
