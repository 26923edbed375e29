-- Signals stay in the process on SQLite, so the feed needs no table here.

-- Fences of runs, leases and streams: they never restart.
CREATE TABLE fences (
    only_row INTEGER PRIMARY KEY DEFAULT 1 CHECK (only_row = 1),
    last     INTEGER NOT NULL
) STRICT;
INSERT INTO fences (last) VALUES (0);
