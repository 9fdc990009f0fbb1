-- Ends a hold: a lease that is still running goes on, else the group is at the back of the line; if it drained
-- meanwhile, it goes.
-- Arguments
--   p_group
--   p_now    epoch seconds; NULL is the server's clock
-- Returns: whether the group was held.

CREATE FUNCTION "{schema}".harel_release(p_group text, p_now double precision) RETURNS boolean
LANGUAGE plpgsql {plans} AS $harel$
DECLARE
    v_now    double precision;
    v_row    tid;
    v_number double precision;
BEGIN
    SELECT g.ctid, g.lock_expiry INTO v_row, v_number FROM "{schema}".transport_groups AS g
    WHERE g.group_id = p_group
    ORDER BY g.head DESC, g.attempts DESC LIMIT 1
    FOR NO KEY UPDATE;
    IF NOT FOUND OR v_number < {held_from} THEN
        RETURN false;
    END IF;
    v_now := {now};
    UPDATE "{schema}".transport_groups AS g
    SET since = v_now,
        lock_expiry = CASE WHEN g.locked_by IS NULL THEN v_now ELSE greatest(v_now, g.lock_expiry - {held}) END
    WHERE g.ctid = v_row
    RETURNING g.ctid INTO v_row;
    PERFORM "{schema}".harel_drop(ARRAY[v_row]);
    PERFORM "{schema}".harel_wake();
    RETURN true;
END
$harel$;
