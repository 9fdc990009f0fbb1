-- Says whether a group's turn has come.
-- Arguments
--   p_group
--   p_now  epoch seconds
-- Returns: whether it is so; NULL if there is no such group.

CREATE FUNCTION "{schema}".harel_claimable(p_group text, p_now double precision) RETURNS boolean
LANGUAGE plpgsql {plans} AS $harel$
BEGIN
    RETURN (
        SELECT g.lock_expiry <= p_now FROM "{schema}".transport_groups AS g
        WHERE g.group_id = p_group
        ORDER BY g.head DESC, g.attempts DESC LIMIT 1
    );
END
$harel$;
