CREATE TABLE instances (
    id             text PRIMARY KEY,
    name           text        NOT NULL,
    version        text        NOT NULL,
    schema_version bigint      NOT NULL,
    roles          text        NOT NULL,
    pools          text        NOT NULL,
    pool_size      integer     NOT NULL,
    started_at     timestamptz NOT NULL,
    expires_at     timestamptz NOT NULL
);

CREATE TABLE tickets (
    hash       bytea PRIMARY KEY,
    user_id    text        NOT NULL,
    session_id uuid,
    origin     text,
    grants     text        NOT NULL,
    expires_at timestamptz NOT NULL
);
CREATE INDEX tickets_by_expiry ON tickets (expires_at);

CREATE TABLE api_keys (
    id         uuid PRIMARY KEY,
    name       text        NOT NULL,
    hash       bytea       NOT NULL UNIQUE,
    scopes     text        NOT NULL,
    created_at timestamptz NOT NULL,
    expires_at timestamptz,
    revoked_at timestamptz
);

CREATE TABLE settings (
    name    text PRIMARY KEY,
    value   text   NOT NULL,
    version bigint NOT NULL
);

CREATE TABLE once (
    scope        text        NOT NULL,
    key          text        NOT NULL,
    request_hash bytea       NOT NULL,
    result_id    uuid        NOT NULL,
    expires_at   timestamptz NOT NULL,
    PRIMARY KEY (scope, key)
);
CREATE INDEX once_by_expiry ON once (expires_at);

CREATE TABLE audit (
    id         uuid PRIMARY KEY,
    at         timestamptz NOT NULL,
    actor      text        NOT NULL,
    request_id text        NOT NULL,
    action     text        NOT NULL,
    subject    text        NOT NULL,
    before     text,
    after      text
);
