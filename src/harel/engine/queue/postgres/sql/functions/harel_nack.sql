-- Gives a head back and parks its group.
-- Arguments
--   p_group, p_seq, p_attempt, p_token  of the lease
--   p_delay                             seconds
--   p_soft                              whether a crash of the server may undo it; the lease runs out then instead
--   p_now                               epoch seconds; NULL is the server's clock
-- Returns: whether the lease was current.

CREATE FUNCTION "{schema}".harel_nack(
    p_group text, p_seq bigint, p_attempt integer, p_token text, p_delay double precision, p_soft boolean,
    p_now double precision
) RETURNS boolean
LANGUAGE plpgsql {plans} AS $harel$
BEGIN
    IF p_soft THEN
        SET LOCAL synchronous_commit = off;
    END IF;
    UPDATE "{schema}".transport_groups AS g
    SET locked_by = NULL,
        lock_expiry = CASE WHEN g.lock_expiry >= {held_from} THEN g.lock_expiry ELSE {now} + p_delay END,
        since = CASE WHEN g.lock_expiry >= {held_from} THEN g.since ELSE {now} END
    WHERE {lease};
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF p_delay = 0.0 THEN
        PERFORM "{schema}".harel_wake();
    END IF;
    RETURN true;
END
$harel$;
