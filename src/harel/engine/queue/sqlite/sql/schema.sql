-- The tables. {prefix}_schema says which version of them this is.

CREATE TABLE IF NOT EXISTS {prefix}_messages (
    seq      INTEGER PRIMARY KEY AUTOINCREMENT,  -- never used again, so that a dead letter keeps its name
    group_id TEXT    NOT NULL,
    event    TEXT    NOT NULL
);

CREATE INDEX IF NOT EXISTS {prefix}_messages_group ON {prefix}_messages (group_id, seq);

-- A row while the group has messages, or is held. Its rowid grows with its arrival and breaks ties.
CREATE TABLE IF NOT EXISTS {prefix}_groups (
    group_id    TEXT    PRIMARY KEY NOT NULL,
    locked_by   TEXT,                            -- the fencing token; NULL once settled
    lock_expiry REAL    NOT NULL,                -- when it may next be claimed: see schedule.py
    priority    INTEGER NOT NULL,
    attempts    INTEGER NOT NULL,
    since       REAL    NOT NULL                 -- when the present state began
);

CREATE INDEX IF NOT EXISTS {prefix}_groups_claimable ON {prefix}_groups (lock_expiry);

-- One for each floor, so that a claim with a floor does not pass over what lies below it.
CREATE INDEX IF NOT EXISTS {prefix}_groups_claimable_1 ON {prefix}_groups (lock_expiry) WHERE priority >= 1;
CREATE INDEX IF NOT EXISTS {prefix}_groups_claimable_2 ON {prefix}_groups (lock_expiry) WHERE priority >= 2;
CREATE INDEX IF NOT EXISTS {prefix}_groups_claimable_3 ON {prefix}_groups (lock_expiry) WHERE priority >= 3;
CREATE INDEX IF NOT EXISTS {prefix}_groups_claimable_4 ON {prefix}_groups (lock_expiry) WHERE priority >= 4;

CREATE TABLE IF NOT EXISTS {prefix}_dead_letters (
    seq         INTEGER PRIMARY KEY,
    group_id    TEXT    NOT NULL,
    event       TEXT    NOT NULL,
    attempts    INTEGER NOT NULL,
    priority    INTEGER NOT NULL,
    reason      TEXT    NOT NULL,
    rejected_at REAL    NOT NULL
);

-- The table is in this order itself, but the planner cannot be told to go by that whatever its statistics say.
CREATE UNIQUE INDEX IF NOT EXISTS {prefix}_dead_letters_page ON {prefix}_dead_letters (seq);
CREATE INDEX IF NOT EXISTS {prefix}_dead_letters_group ON {prefix}_dead_letters (group_id, seq);

CREATE TABLE IF NOT EXISTS {prefix}_schema (version INTEGER NOT NULL);

INSERT INTO {prefix}_schema (version) SELECT {version} WHERE NOT EXISTS (SELECT 1 FROM {prefix}_schema);
