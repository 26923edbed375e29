CREATE TABLE users (
    id                  TEXT    PRIMARY KEY,
    name                TEXT    NOT NULL UNIQUE,
    role                TEXT    NOT NULL,
    password            TEXT,
    is_disabled         INTEGER NOT NULL DEFAULT 0,
    version             INTEGER NOT NULL DEFAULT 1,
    created_at          INTEGER NOT NULL,
    updated_at          INTEGER NOT NULL
) STRICT;

-- A session that has ended has no row.
CREATE TABLE auth_sessions (
    id                  BLOB    PRIMARY KEY,
    user_id             TEXT    NOT NULL,
    client              TEXT,
    latest              BLOB    NOT NULL,
    created_at          INTEGER NOT NULL,
    refreshed_at        INTEGER NOT NULL,
    expires_at          INTEGER NOT NULL,
    ends_at             INTEGER NOT NULL
) STRICT;
CREATE INDEX auth_sessions_by_user ON auth_sessions (user_id, id);
CREATE INDEX auth_sessions_by_expiry ON auth_sessions (expires_at);

-- Every refresh token of a live session; those that have a successor were used.
CREATE TABLE refresh_tokens (
    hash                BLOB    PRIMARY KEY,
    session_id          BLOB    NOT NULL,
    successor           BLOB
) STRICT;
CREATE INDEX refresh_tokens_by_session ON refresh_tokens (session_id);

-- The API key that minted a ticket, beside the sign-in session that did.
ALTER TABLE tickets ADD COLUMN key_id BLOB;
CREATE INDEX tickets_by_user ON tickets (user_id);
CREATE INDEX tickets_by_session ON tickets (session_id) WHERE session_id IS NOT NULL;
CREATE INDEX tickets_by_key ON tickets (key_id) WHERE key_id IS NOT NULL;

CREATE INDEX audit_by_actor ON audit (actor, id);
CREATE INDEX audit_by_subject ON audit (subject, id);
CREATE INDEX audit_by_time ON audit (at);
