-- Gives a head back and parks its group.
-- Arguments
--   p_group, p_token  of the lease
--   p_delay           seconds
--   p_soft            whether a crash of the server may undo it; the lease runs out then instead
--   p_now             epoch seconds; NULL is the server's clock
-- Returns: whether the lease was current.

CREATE FUNCTION "{schema}".harel_nack(
    p_group text, p_token text, p_delay double precision, p_soft boolean, p_now double precision
) RETURNS boolean
LANGUAGE plpgsql {plans} AS $harel$
DECLARE
    v_now double precision;
    v_row tid;
BEGIN
    IF p_soft THEN
        SET LOCAL synchronous_commit = off;
    END IF;
    SELECT g.ctid INTO v_row FROM "{schema}".transport_groups AS g
    WHERE g.group_id = p_group AND g.locked_by = p_token
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    v_now := {now};
    UPDATE "{schema}".transport_groups AS g
    SET locked_by = NULL,
        lock_expiry = CASE WHEN g.lock_expiry >= {held_from} THEN g.lock_expiry ELSE v_now + p_delay END,
        since = CASE WHEN g.lock_expiry >= {held_from} THEN g.since ELSE v_now END
    WHERE g.ctid = v_row;
    IF p_delay = 0.0 THEN
        PERFORM "{schema}".harel_wake();
    END IF;
    RETURN true;
END
$harel$;
