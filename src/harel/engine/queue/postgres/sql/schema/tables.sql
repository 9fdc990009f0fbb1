-- The tables, where each group_id sorts by its bytes. transport_schema says which version of them this is.
--
-- What is written often is found so that no dead version of it is passed over, for an old snapshot that is held open
-- anywhere in the database keeps those. So nothing that is updated has a unique index on what stays the same: at each
-- update such an index reads all dead versions.

CREATE TABLE IF NOT EXISTS "{schema}".transport_messages (
    group_id text      COLLATE "C" NOT NULL,
    seq      bigserial,                         -- never used again, so that a dead letter keeps its name
    event    text      NOT NULL,                -- not jsonb, which neither keeps its bytes nor takes \u0000
    PRIMARY KEY (group_id, seq)
) WITH (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_limit = 2000
);

-- A row while the group exists, made and dropped together with that in transport_groups. It makes the group one of its
-- name, and it is what a publisher locks: FOR KEY SHARE, before it numbers its message. So whoever has it FOR UPDATE
-- knows that every message of the group which will ever be seen, but is not seen now, gets a larger number.
CREATE TABLE IF NOT EXISTS "{schema}".transport_names (
    group_id text COLLATE "C" PRIMARY KEY
) WITH (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_limit = 2000
);

-- A row while the group has messages, or is held. It is written at every claim and settling: what the page has
-- left takes the new version, and vacuum comes early.
CREATE TABLE IF NOT EXISTS "{schema}".transport_groups (
    group_id    text             COLLATE "C" NOT NULL,
    locked_by   text,                           -- the fencing token; NULL once settled
    lock_expiry double precision NOT NULL,      -- when it may next be claimed: see schedule.py
    priority    smallint         NOT NULL,
    attempts    integer          NOT NULL,      -- claims of the message that head names, 0 once it is settled
    since       double precision NOT NULL,      -- when the present state began
    arrival     bigint           NOT NULL,      -- breaks ties of lock_expiry
    head        bigint,                         -- the seq that was claimed last
    settled     bigint           NOT NULL,      -- no message with a seq up to this is there or will come
    dead        integer          NOT NULL       -- how many went since that was found out; a claim passes over them
) WITH (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_limit = 2000
);

-- There is no primary key, without which a publication of all tables would refuse its updates.
ALTER TABLE "{schema}".transport_groups REPLICA IDENTITY FULL;

-- A lease knows its group, message and attempt, and so finds its row, and no other version of it. Who knows the name
-- alone begins with the last message.
CREATE INDEX IF NOT EXISTS transport_groups_lease ON "{schema}".transport_groups (group_id, head, attempts);

CREATE INDEX IF NOT EXISTS transport_groups_claimable ON "{schema}".transport_groups (lock_expiry, arrival);

-- One for each floor, so that a claim with a floor does not pass over what lies below it.
CREATE INDEX IF NOT EXISTS transport_groups_claimable_1 ON "{schema}".transport_groups (lock_expiry, arrival)
    WHERE priority >= 1;
CREATE INDEX IF NOT EXISTS transport_groups_claimable_2 ON "{schema}".transport_groups (lock_expiry, arrival)
    WHERE priority >= 2;
CREATE INDEX IF NOT EXISTS transport_groups_claimable_3 ON "{schema}".transport_groups (lock_expiry, arrival)
    WHERE priority >= 3;
CREATE INDEX IF NOT EXISTS transport_groups_claimable_4 ON "{schema}".transport_groups (lock_expiry, arrival)
    WHERE priority >= 4;

CREATE TABLE IF NOT EXISTS "{schema}".transport_dead_letters (
    seq         bigint           PRIMARY KEY,
    group_id    text             COLLATE "C" NOT NULL,
    event       text             NOT NULL,
    attempts    integer          NOT NULL,
    priority    smallint         NOT NULL,
    reason      text             NOT NULL,
    rejected_at double precision NOT NULL
);

CREATE INDEX IF NOT EXISTS transport_dead_letters_group ON "{schema}".transport_dead_letters (group_id, seq);

CREATE TABLE IF NOT EXISTS "{schema}".transport_schema (version integer NOT NULL);

INSERT INTO "{schema}".transport_schema (version)
SELECT {version} WHERE NOT EXISTS (SELECT FROM "{schema}".transport_schema);
