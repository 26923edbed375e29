-- The sockets of this process. A row counts only while its replica holds its lease.
CREATE TABLE connections (
    id                  BLOB    PRIMARY KEY,
    instance_id         TEXT    NOT NULL,
    user_id             TEXT    NOT NULL,
    since               INTEGER NOT NULL
) STRICT;
CREATE INDEX connections_by_user ON connections (user_id, since, id);
CREATE INDEX connections_by_instance ON connections (instance_id);

-- Who shows themselves where, by socket. `leaves_at` is set when the socket is gone: who comes back before has never left.
CREATE TABLE presence (
    room                TEXT    NOT NULL,
    connection_id       BLOB    NOT NULL,
    instance_id         TEXT    NOT NULL,
    user_id             TEXT    NOT NULL,
    since               INTEGER NOT NULL,
    leaves_at           INTEGER,
    PRIMARY KEY (room, connection_id)
) STRICT;
CREATE INDEX presence_by_connection ON presence (connection_id);
CREATE INDEX presence_by_instance ON presence (instance_id);
CREATE INDEX presence_by_end ON presence (leaves_at) WHERE leaves_at IS NOT NULL;

-- Requests to one client, answered once.
CREATE TABLE calls (
    id                  BLOB    PRIMARY KEY,
    user_id             TEXT    NOT NULL,
    event               TEXT    NOT NULL,
    payload             TEXT    NOT NULL,
    sender              TEXT    NOT NULL,
    state               TEXT    NOT NULL,
    waits               INTEGER NOT NULL,
    offered_to          BLOB,
    offered_since       INTEGER,
    offer_until         INTEGER,
    claimed_by          BLOB,
    claim_token         BLOB,
    result              TEXT,
    error               TEXT,
    created_at          INTEGER NOT NULL,
    deadline_at         INTEGER NOT NULL,
    ended_at            INTEGER
) STRICT;
CREATE INDEX calls_open_by_user ON calls (user_id, id) WHERE state IN ('offered', 'claimed');
CREATE INDEX calls_by_offer ON calls (offer_until) WHERE state = 'offered' AND offer_until IS NOT NULL;
CREATE INDEX calls_by_deadline ON calls (deadline_at) WHERE state IN ('offered', 'claimed');
CREATE INDEX calls_by_end ON calls (ended_at) WHERE ended_at IS NOT NULL;

-- Append-only sequences of chunks with one producer at a time and a terminal state.
CREATE TABLE streams (
    id                  BLOB    PRIMARY KEY,
    content             TEXT    NOT NULL,
    user_id             TEXT,
    run_id              BLOB,
    owner               TEXT    NOT NULL,
    state               TEXT    NOT NULL,
    reason              TEXT,
    producer            TEXT    NOT NULL,
    fence               INTEGER NOT NULL,
    lease_until         INTEGER,
    tail                INTEGER NOT NULL DEFAULT 0,
    bytes               INTEGER NOT NULL DEFAULT 0,
    stop_requested_at   INTEGER,
    created_at          INTEGER NOT NULL,
    ended_at            INTEGER
) STRICT;
CREATE INDEX streams_by_lease ON streams (lease_until) WHERE state = 'open';
CREATE INDEX streams_by_end ON streams (ended_at) WHERE ended_at IS NOT NULL;
CREATE UNIQUE INDEX streams_by_run ON streams (run_id) WHERE run_id IS NOT NULL;

CREATE TABLE stream_chunks (
    stream_id           BLOB    NOT NULL,
    seq                 INTEGER NOT NULL,
    data                BLOB    NOT NULL,
    PRIMARY KEY (stream_id, seq)
) STRICT;
