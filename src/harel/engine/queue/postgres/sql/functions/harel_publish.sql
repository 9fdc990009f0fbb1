-- Adds a message at its group's tail, and the group if it does not exist yet.
-- Arguments
--   p_group, p_event, p_priority
--   p_ahead  seconds that a new group is put before now
--   p_now    epoch seconds; NULL is the server's clock
-- Returns: nothing.
--
-- FOR KEY SHARE keeps the row of a group that exists from being dropped until the message is there for all to see. It
-- does not stand in the way of a claim or a settling. Where the row went in between, it is made anew.

CREATE FUNCTION "{schema}".harel_publish(
    p_group text, p_event text, p_priority smallint, p_ahead double precision, p_now double precision
) RETURNS void
LANGUAGE plpgsql {plans} AS $harel$
DECLARE
    v_now    double precision := {now};
    v_number double precision;
BEGIN
    WITH made AS (
        INSERT INTO "{schema}".transport_groups AS g (group_id, lock_expiry, priority, attempts, since, arrival)
        VALUES (p_group, v_now - p_ahead, p_priority, 0, v_now, {next})
        ON CONFLICT (group_id) DO NOTHING
        RETURNING g.lock_expiry
    ), put AS (
        INSERT INTO "{schema}".transport_messages (group_id, event) VALUES (p_group, p_event)
    )
    SELECT made.lock_expiry INTO v_number FROM made;
    WHILE NOT FOUND LOOP
        SELECT g.lock_expiry INTO v_number FROM "{schema}".transport_groups AS g
        WHERE g.group_id = p_group
        FOR KEY SHARE;
        EXIT WHEN FOUND;
        INSERT INTO "{schema}".transport_groups AS g (group_id, lock_expiry, priority, attempts, since, arrival)
        VALUES (p_group, v_now - p_ahead, p_priority, 0, v_now, {next})
        ON CONFLICT (group_id) DO NOTHING
        RETURNING g.lock_expiry INTO v_number;
    END LOOP;
    IF v_number <= v_now AND {somebody_waits} THEN
        PERFORM "{schema}".harel_wake();
    END IF;
END
$harel$;
