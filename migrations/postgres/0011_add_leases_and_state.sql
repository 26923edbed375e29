-- Named ownership that expires. A lease that is over keeps its row for a while: whoever took its fence from the sequence
-- before and inserts late then meets the row instead of its absence, and gets a fence that is newer than all before.
CREATE TABLE leases (
    key        text COLLATE "C" PRIMARY KEY,
    holder     text        NOT NULL,
    fence      bigint      NOT NULL,
    expires_at timestamptz NOT NULL,
    meta       text
) WITH (fillfactor = 70);
CREATE INDEX leases_by_expiry ON leases (expires_at);

-- Small values that applications share. `bytes` is what counts against the quota of the namespace.
CREATE TABLE state (
    ns         text COLLATE "C" NOT NULL,
    key        text COLLATE "C" NOT NULL,
    version    bigint      NOT NULL,
    value      text        NOT NULL,
    bytes      bigint      NOT NULL,
    updated_at timestamptz NOT NULL,
    expires_at timestamptz,
    PRIMARY KEY (ns, key)
);
CREATE INDEX state_by_expiry ON state (expires_at) WHERE expires_at IS NOT NULL;

-- What a namespace holds, expired values included. Its row is locked by whoever writes in it, so that no two writers
-- exceed its quota together.
CREATE TABLE state_spaces (
    ns    text COLLATE "C" PRIMARY KEY,
    keys  bigint NOT NULL,
    bytes bigint NOT NULL
) WITH (fillfactor = 70);
CREATE INDEX state_spaces_empty ON state_spaces (ns) WHERE keys = 0;

-- Once-keys that programs claim by themselves: under way until `done`, by the claimant with the fence. The keys of requests
-- have no fence and are done when they are committed.
ALTER TABLE once
    ADD COLUMN done boolean NOT NULL DEFAULT true,
    ADD COLUMN fence bigint,
    ADD COLUMN lease_until timestamptz;
