-- What is in a column `sealed` is encrypted by the servers. It begins with the version of its form in one byte, the length
-- of the id of its key in another, and that id. `webhook_secrets` has such a column as well.

-- Named secrets, which requests of tasks carry.
CREATE TABLE secrets (
    id                  BLOB    PRIMARY KEY,
    name                TEXT    NOT NULL UNIQUE,
    version             INTEGER NOT NULL,
    sealed              BLOB    NOT NULL,
    created_at          INTEGER NOT NULL,
    updated_at          INTEGER NOT NULL
) STRICT;

-- Tokens of providers. `refresh_fence` and `refresh_until` are the right of one replica to ask the provider.
CREATE TABLE tokens (
    id                  BLOB    PRIMARY KEY,
    name                TEXT    NOT NULL UNIQUE,
    provider            TEXT    NOT NULL,
    sealed              BLOB    NOT NULL,
    version             INTEGER NOT NULL,
    granted_at          INTEGER,
    expires_at          INTEGER,
    refresh_fence       INTEGER NOT NULL DEFAULT 0,
    refresh_until       INTEGER,
    failures            INTEGER NOT NULL DEFAULT 0,
    retry_at            INTEGER,
    last_error          TEXT,
    created_at          INTEGER NOT NULL,
    updated_at          INTEGER NOT NULL
) STRICT;

-- A known value under each key that encrypts, or did: a server does not start without one of these keys, unless it is
-- retired, and does not encrypt by one that is.
CREATE TABLE sealing_canaries (
    key_id              TEXT    PRIMARY KEY,
    id                  BLOB    NOT NULL,
    sealed              BLOB    NOT NULL,
    promoted_at         INTEGER NOT NULL,
    retired_at          INTEGER
) STRICT;
