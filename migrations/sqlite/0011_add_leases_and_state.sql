-- Named ownership that expires. A lease that is over keeps its row for a while, as on PostgreSQL.
CREATE TABLE leases (
    key                 TEXT    PRIMARY KEY,
    holder              TEXT    NOT NULL,
    fence               INTEGER NOT NULL,
    expires_at          INTEGER NOT NULL,
    meta                TEXT
) STRICT;
CREATE INDEX leases_by_expiry ON leases (expires_at);

-- Small values that applications share. `bytes` is what counts against the quota of the namespace.
CREATE TABLE state (
    ns                  TEXT    NOT NULL,
    key                 TEXT    NOT NULL,
    version             INTEGER NOT NULL,
    value               TEXT    NOT NULL,
    bytes               INTEGER NOT NULL,
    updated_at          INTEGER NOT NULL,
    expires_at          INTEGER,
    PRIMARY KEY (ns, key)
) STRICT;
CREATE INDEX state_by_expiry ON state (expires_at) WHERE expires_at IS NOT NULL;

-- What a namespace holds, expired values included.
CREATE TABLE state_spaces (
    ns                  TEXT    PRIMARY KEY,
    keys                INTEGER NOT NULL,
    bytes               INTEGER NOT NULL
) STRICT;
CREATE INDEX state_spaces_empty ON state_spaces (ns) WHERE keys = 0;

-- Once-keys that programs claim by themselves: under way until `done`, by the claimant with the fence. The keys of requests
-- have no fence and are done when they are committed.
ALTER TABLE once ADD COLUMN done INTEGER NOT NULL DEFAULT 1;
ALTER TABLE once ADD COLUMN fence INTEGER;
ALTER TABLE once ADD COLUMN lease_until INTEGER;
