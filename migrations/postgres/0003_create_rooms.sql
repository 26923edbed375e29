CREATE TABLE rooms (
    id          uuid PRIMARY KEY,
    name        text        COLLATE "C" NOT NULL UNIQUE,
    kind        text        NOT NULL,
    epoch       text        NOT NULL,
    top         bigint      NOT NULL DEFAULT 0,
    first_kept  bigint      NOT NULL DEFAULT 1,
    bytes_total bigint      NOT NULL DEFAULT 0,
    max_count   bigint      NOT NULL,
    max_age_ms  bigint      NOT NULL,
    max_bytes   bigint      NOT NULL,
    created_at  timestamptz NOT NULL
) WITH (fillfactor = 70);

-- `bytes_total` is the sum of payload bytes of the room up to and including this event.
CREATE TABLE room_events (
    room_id     uuid        NOT NULL,
    pos         bigint      NOT NULL,
    msg_id      text        NOT NULL,
    event       text        NOT NULL,
    payload     text        NOT NULL,
    sender      text        NOT NULL,
    bytes_total bigint      NOT NULL,
    at          timestamptz NOT NULL,
    PRIMARY KEY (room_id, pos)
);

-- Only message ids that a sender gave; expired rows are overwritten.
CREATE TABLE room_dedupe (
    room_id    uuid        NOT NULL,
    sender     text        NOT NULL,
    msg_id     text        NOT NULL,
    pos        bigint      NOT NULL,
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (room_id, sender, msg_id)
);
CREATE INDEX room_dedupe_by_expiry ON room_dedupe (expires_at);
