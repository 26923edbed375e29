CREATE TABLE instances (
    id                  TEXT    PRIMARY KEY,
    name                TEXT    NOT NULL,
    version             TEXT    NOT NULL,
    schema_version      INTEGER NOT NULL,
    roles               TEXT    NOT NULL,
    pools               TEXT    NOT NULL,
    pool_size           INTEGER NOT NULL,
    started_at          INTEGER NOT NULL,
    expires_at          INTEGER NOT NULL
) STRICT;

CREATE TABLE tickets (
    hash                BLOB    PRIMARY KEY,
    user_id             TEXT    NOT NULL,
    session_id          BLOB,
    origin              TEXT,
    grants              TEXT    NOT NULL,
    expires_at          INTEGER NOT NULL
) STRICT;
CREATE INDEX tickets_by_expiry ON tickets (expires_at);

CREATE TABLE api_keys (
    id                  BLOB    PRIMARY KEY,
    name                TEXT    NOT NULL,
    hash                BLOB    NOT NULL UNIQUE,
    scopes              TEXT    NOT NULL,
    created_at          INTEGER NOT NULL,
    expires_at          INTEGER,
    revoked_at          INTEGER
) STRICT;

CREATE TABLE settings (
    name                TEXT    PRIMARY KEY,
    value               TEXT    NOT NULL,
    version             INTEGER NOT NULL
) STRICT;

CREATE TABLE once (
    scope               TEXT    NOT NULL,
    key                 TEXT    NOT NULL,
    request_hash        BLOB    NOT NULL,
    result_id           BLOB    NOT NULL,
    expires_at          INTEGER NOT NULL,
    PRIMARY KEY (scope, key)
) STRICT;
CREATE INDEX once_by_expiry ON once (expires_at);

CREATE TABLE audit (
    id                  BLOB    PRIMARY KEY,
    at                  INTEGER NOT NULL,
    actor               TEXT    NOT NULL,
    request_id          TEXT    NOT NULL,
    action              TEXT    NOT NULL,
    subject             TEXT    NOT NULL,
    before              TEXT,
    after               TEXT
) STRICT;
