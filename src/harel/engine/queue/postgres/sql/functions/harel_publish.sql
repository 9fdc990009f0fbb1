-- Adds a message at its group's tail, and the group if it does not exist yet.
-- Arguments
--   p_group, p_event, p_priority
--   p_ahead  seconds that a new group is put before now
--   p_now    epoch seconds; NULL is the server's clock
-- Returns: nothing.
--
-- FOR KEY SHARE keeps a group that exists from being dropped until the message is there for all to see. It does not
-- stand in the way of another publisher, a claim or a settling. The message is numbered after that lock was had: what
-- selects from a subquery that locks is worked out when the lock is there. Where the group went, it is made anew.

CREATE FUNCTION "{schema}".harel_publish(
    p_group text, p_event text, p_priority smallint, p_ahead double precision, p_now double precision
) RETURNS void
LANGUAGE plpgsql {plans} AS $harel$
DECLARE
    v_now double precision := {now};
BEGIN
    LOOP
        INSERT INTO "{schema}".transport_messages (group_id, seq, event)
        SELECT kept.group_id, {next}, p_event
        FROM (SELECT n.group_id FROM "{schema}".transport_names AS n WHERE n.group_id = p_group FOR KEY SHARE) AS kept;
        EXIT WHEN FOUND;

        WITH made AS (
            INSERT INTO "{schema}".transport_names AS n (group_id) VALUES (p_group)
            ON CONFLICT (group_id) DO NOTHING
            RETURNING n.group_id, {next} AS seq
        ), placed AS (
            INSERT INTO "{schema}".transport_groups
                (group_id, lock_expiry, priority, attempts, since, arrival, settled, dead)
            SELECT made.group_id, v_now - p_ahead, p_priority, 0, v_now, made.seq, made.seq - 1, 0 FROM made
        )
        INSERT INTO "{schema}".transport_messages (group_id, seq, event)
        SELECT made.group_id, made.seq, p_event FROM made;
        EXIT WHEN FOUND;
    END LOOP;
    IF {somebody_waits} AND "{schema}".harel_claimable(p_group, v_now) THEN
        PERFORM "{schema}".harel_wake();
    END IF;
END
$harel$;
