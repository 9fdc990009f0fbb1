-- What rqlite's tables have besides those of SQLite.

-- One row: the time of the write that is going on, or went on last. See clock.sql.
CREATE TABLE IF NOT EXISTS {prefix}_clock (
    id    INTEGER PRIMARY KEY,
    told  REAL    NOT NULL,    -- a Julian day, as the server told it
    now_s REAL    NOT NULL,    -- epoch seconds
    -- More than six decimals (and what SQLite rounds) are no literal of rqlite's: each node would have put in its own.
    CONSTRAINT {prefix}_told_alike CHECK (abs(told - round(told, 6)) < 0.00000002)
);

INSERT INTO {prefix}_clock (id, told, now_s) SELECT 1, 0.0, 0.0 WHERE NOT EXISTS (SELECT 1 FROM {prefix}_clock);

-- A row for each write of late: a write that is sent again breaks on its id, and changes nothing.
CREATE TABLE IF NOT EXISTS {prefix}_requests (
    id      TEXT PRIMARY KEY NOT NULL,
    at      REAL NOT NULL,             -- when it was, epoch seconds
    until   REAL NOT NULL,             -- when nobody can send it again any more
    answer  TEXT                       -- what it found
) WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS {prefix}_requests_until ON {prefix}_requests (until);
