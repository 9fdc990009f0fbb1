-- Puts a group out of every claim's reach; what its number was stays in it.
-- Arguments
--   p_group
--   p_now    epoch seconds; NULL is the server's clock
-- Returns: whether there is such a group.

CREATE FUNCTION "{schema}".harel_hold(p_group text, p_now double precision) RETURNS boolean
LANGUAGE plpgsql {plans} AS $harel$
DECLARE
    v_row tid;
BEGIN
    SELECT g.ctid INTO v_row FROM "{schema}".transport_groups AS g
    WHERE g.group_id = p_group
    ORDER BY g.head DESC, g.attempts DESC LIMIT 1
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE "{schema}".transport_groups AS g
    SET since = {now}, lock_expiry = g.lock_expiry + {held}
    WHERE g.ctid = v_row AND g.lock_expiry < {held_from};
    RETURN true;
END
$harel$;
