-- Renews a lease from now; a hold stays.
-- Arguments
--   p_group, p_seq, p_attempt, p_token  of the lease
--   p_visibility                        seconds
--   p_soft                              whether a crash of the server may undo it; the lease runs out sooner then
--   p_now                               epoch seconds; NULL is the server's clock
-- Returns: when the lease runs out; NULL if it was not current.

CREATE FUNCTION "{schema}".harel_extend(
    p_group text, p_seq bigint, p_attempt integer, p_token text, p_visibility double precision, p_soft boolean,
    p_now double precision
) RETURNS double precision
LANGUAGE plpgsql {plans} AS $harel$
DECLARE
    v_now double precision;
    v_row tid;
BEGIN
    IF p_soft THEN
        SET LOCAL synchronous_commit = off;
    END IF;
    SELECT g.ctid INTO v_row FROM "{schema}".transport_groups AS g
    WHERE {lease}
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    v_now := {now};
    UPDATE "{schema}".transport_groups AS g
    SET lock_expiry = v_now + p_visibility + CASE WHEN g.lock_expiry >= {held_from} THEN {held} ELSE 0.0 END
    WHERE g.ctid = v_row;
    RETURN v_now + p_visibility;
END
$harel$;
