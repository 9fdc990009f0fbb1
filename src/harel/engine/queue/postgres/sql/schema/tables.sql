-- The tables, where each group_id sorts by its bytes. transport_schema says which version of them this is.

CREATE TABLE IF NOT EXISTS "{schema}".transport_messages (
    seq      bigserial PRIMARY KEY,             -- never used again, so that a dead letter keeps its name
    group_id text      COLLATE "C" NOT NULL,
    event    text      NOT NULL                 -- not jsonb, which neither keeps its bytes nor takes \u0000
) WITH (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_limit = 2000
);

CREATE INDEX IF NOT EXISTS transport_messages_group ON "{schema}".transport_messages (group_id, seq);

-- A row while the group has messages, or is held. It is written at every claim and settling: what the page has
-- left takes the new version, and vacuum comes early.
CREATE TABLE IF NOT EXISTS "{schema}".transport_groups (
    group_id    text             COLLATE "C" PRIMARY KEY,
    locked_by   text,                           -- the fencing token; NULL once settled
    lock_expiry double precision NOT NULL,      -- when it may next be claimed: see schedule.py
    priority    smallint         NOT NULL,
    attempts    integer          NOT NULL,      -- claims of the message that head names, 0 once it is settled
    since       double precision NOT NULL,      -- when the present state began
    arrival     bigint           NOT NULL,      -- breaks ties of lock_expiry
    head        bigint                          -- the seq that was claimed last
) WITH (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_limit = 2000
);

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
