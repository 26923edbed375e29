CREATE TABLE users (
    id          text        COLLATE "C" PRIMARY KEY,
    name        text        COLLATE "C" NOT NULL UNIQUE,
    role        text        NOT NULL,
    password    text,
    is_disabled boolean     NOT NULL DEFAULT false,
    version     bigint      NOT NULL DEFAULT 1,
    created_at  timestamptz NOT NULL,
    updated_at  timestamptz NOT NULL
);

-- A session that has ended has no row.
CREATE TABLE auth_sessions (
    id           uuid PRIMARY KEY,
    user_id      text        COLLATE "C" NOT NULL,
    client       text,
    latest       bytea       NOT NULL,
    created_at   timestamptz NOT NULL,
    refreshed_at timestamptz NOT NULL,
    expires_at   timestamptz NOT NULL,
    ends_at      timestamptz NOT NULL
);
CREATE INDEX auth_sessions_by_user ON auth_sessions (user_id, id);
CREATE INDEX auth_sessions_by_expiry ON auth_sessions (expires_at);

-- Every refresh token of a live session; those that have a successor were used.
CREATE TABLE refresh_tokens (
    hash       bytea PRIMARY KEY,
    session_id uuid NOT NULL,
    successor  bytea
);
CREATE INDEX refresh_tokens_by_session ON refresh_tokens (session_id);

-- The API key that minted a ticket, beside the sign-in session that did.
ALTER TABLE tickets ADD COLUMN key_id uuid;
CREATE INDEX tickets_by_user ON tickets (user_id);
CREATE INDEX tickets_by_session ON tickets (session_id) WHERE session_id IS NOT NULL;
CREATE INDEX tickets_by_key ON tickets (key_id) WHERE key_id IS NOT NULL;

CREATE INDEX audit_by_actor ON audit (actor, id);
CREATE INDEX audit_by_subject ON audit (subject, id);
CREATE INDEX audit_by_time ON audit (at);
