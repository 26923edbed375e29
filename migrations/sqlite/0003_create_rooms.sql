CREATE TABLE rooms (
    id                  BLOB    PRIMARY KEY,
    name                TEXT    NOT NULL UNIQUE,
    kind                TEXT    NOT NULL,
    epoch               TEXT    NOT NULL,
    top                 INTEGER NOT NULL DEFAULT 0,
    first_kept          INTEGER NOT NULL DEFAULT 1,
    bytes_total         INTEGER NOT NULL DEFAULT 0,
    max_count           INTEGER NOT NULL,
    max_age_ms          INTEGER NOT NULL,
    max_bytes           INTEGER NOT NULL,
    created_at          INTEGER NOT NULL
) STRICT;

-- `bytes_total` is the sum of payload bytes of the room up to and including this event.
CREATE TABLE room_events (
    room_id             BLOB    NOT NULL,
    pos                 INTEGER NOT NULL,
    msg_id              TEXT    NOT NULL,
    event               TEXT    NOT NULL,
    payload             TEXT    NOT NULL,
    sender              TEXT    NOT NULL,
    bytes_total         INTEGER NOT NULL,
    at                  INTEGER NOT NULL,
    PRIMARY KEY (room_id, pos)
) STRICT;

-- Only message ids that a sender gave; expired rows are overwritten.
CREATE TABLE room_dedupe (
    room_id             BLOB    NOT NULL,
    sender              TEXT    NOT NULL,
    msg_id              TEXT    NOT NULL,
    pos                 INTEGER NOT NULL,
    expires_at          INTEGER NOT NULL,
    PRIMARY KEY (room_id, sender, msg_id)
) STRICT;
CREATE INDEX room_dedupe_by_expiry ON room_dedupe (expires_at);
