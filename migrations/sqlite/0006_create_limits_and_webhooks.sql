-- Theoretical arrival times (GCRA).
CREATE TABLE rate_limits (
    key                 TEXT    PRIMARY KEY,
    tat                 INTEGER NOT NULL
) STRICT;

CREATE TABLE webhook_secrets (
    id                  BLOB    PRIMARY KEY,
    task_id             BLOB    NOT NULL,
    sealed              BLOB    NOT NULL,
    created_at          INTEGER NOT NULL,
    expires_at          INTEGER
) STRICT;
CREATE INDEX webhook_secrets_by_task ON webhook_secrets (task_id, id);
CREATE INDEX webhook_secrets_by_expiry ON webhook_secrets (expires_at) WHERE expires_at IS NOT NULL;

-- What a request was answered with that makes something without an identity.
ALTER TABLE once ADD COLUMN result TEXT;
