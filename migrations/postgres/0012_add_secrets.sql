-- What is in a column `sealed` is encrypted by the servers. It begins with the version of its form in one byte, the length
-- of the id of its key in another, and that id. `webhook_secrets` has such a column as well.

-- Named secrets, which requests of tasks carry.
CREATE TABLE secrets (
    id         uuid PRIMARY KEY,
    name       text        COLLATE "C" NOT NULL UNIQUE,
    version    bigint      NOT NULL,
    sealed     bytea       NOT NULL,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL
);

-- Tokens of providers. `refresh_fence` and `refresh_until` are the right of one replica to ask the provider.
CREATE TABLE tokens (
    id            uuid PRIMARY KEY,
    name          text        COLLATE "C" NOT NULL UNIQUE,
    provider      text        NOT NULL,
    sealed        bytea       NOT NULL,
    version       bigint      NOT NULL,
    granted_at    timestamptz,
    expires_at    timestamptz,
    refresh_fence bigint      NOT NULL DEFAULT 0,
    refresh_until timestamptz,
    failures      integer     NOT NULL DEFAULT 0,
    retry_at      timestamptz,
    last_error    text,
    created_at    timestamptz NOT NULL,
    updated_at    timestamptz NOT NULL
) WITH (fillfactor = 70);

-- A known value under each key that encrypts, or did: a server does not start without one of these keys, unless it is
-- retired, and does not encrypt by one that is.
CREATE TABLE sealing_canaries (
    key_id      text        COLLATE "C" PRIMARY KEY,
    id          uuid        NOT NULL,
    sealed      bytea       NOT NULL,
    promoted_at timestamptz NOT NULL,
    retired_at  timestamptz
);
