-- The sockets of all replicas. A row counts only while its replica holds its lease.
CREATE TABLE connections (
    id          uuid PRIMARY KEY,
    instance_id text        NOT NULL,
    user_id     text        COLLATE "C" NOT NULL,
    since       timestamptz NOT NULL
);
CREATE INDEX connections_by_user ON connections (user_id, since, id);
CREATE INDEX connections_by_instance ON connections (instance_id);

-- Who shows themselves where, by socket. `leaves_at` is set when the socket is gone: who comes back before has never left.
CREATE TABLE presence (
    room          text        COLLATE "C" NOT NULL,
    connection_id uuid        NOT NULL,
    instance_id   text        NOT NULL,
    user_id       text        COLLATE "C" NOT NULL,
    since         timestamptz NOT NULL,
    leaves_at     timestamptz,
    PRIMARY KEY (room, connection_id)
);
CREATE INDEX presence_by_connection ON presence (connection_id);
CREATE INDEX presence_by_instance ON presence (instance_id);
CREATE INDEX presence_by_end ON presence (leaves_at) WHERE leaves_at IS NOT NULL;

-- Requests to one client, answered once.
CREATE TABLE calls (
    id             uuid PRIMARY KEY,
    user_id        text        COLLATE "C" NOT NULL,
    event          text        NOT NULL,
    payload        text        NOT NULL,
    sender         text        NOT NULL,
    state          text        NOT NULL,
    waits          boolean     NOT NULL,
    offered_to     uuid,
    offered_since  timestamptz,
    offer_until    timestamptz,
    claimed_by     uuid,
    claim_token    uuid,
    result         text,
    error          text,
    created_at     timestamptz NOT NULL,
    deadline_at    timestamptz NOT NULL,
    ended_at       timestamptz
);
CREATE INDEX calls_open_by_user ON calls (user_id, id) WHERE state IN ('offered', 'claimed');
CREATE INDEX calls_by_offer ON calls (offer_until) WHERE state = 'offered' AND offer_until IS NOT NULL;
CREATE INDEX calls_by_deadline ON calls (deadline_at) WHERE state IN ('offered', 'claimed');
CREATE INDEX calls_by_end ON calls (ended_at) WHERE ended_at IS NOT NULL;

-- Append-only sequences of chunks with one producer at a time and a terminal state.
CREATE TABLE streams (
    id                uuid PRIMARY KEY,
    content           text        NOT NULL,
    user_id           text        COLLATE "C",
    run_id            uuid,
    owner             text        NOT NULL,
    state             text        NOT NULL,
    reason            text,
    producer          text        NOT NULL,
    fence             bigint      NOT NULL,
    lease_until       timestamptz,
    tail              bigint      NOT NULL DEFAULT 0,
    bytes             bigint      NOT NULL DEFAULT 0,
    stop_requested_at timestamptz,
    created_at        timestamptz NOT NULL,
    ended_at          timestamptz
) WITH (fillfactor = 70);
CREATE INDEX streams_by_lease ON streams (lease_until) WHERE state = 'open';
CREATE INDEX streams_by_end ON streams (ended_at) WHERE ended_at IS NOT NULL;
CREATE UNIQUE INDEX streams_by_run ON streams (run_id) WHERE run_id IS NOT NULL;

CREATE TABLE stream_chunks (
    stream_id uuid   NOT NULL,
    seq       bigint NOT NULL,
    data      bytea  NOT NULL,
    PRIMARY KEY (stream_id, seq)
);
