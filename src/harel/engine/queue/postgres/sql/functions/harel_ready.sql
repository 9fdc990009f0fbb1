-- Says when something can be claimed, if nothing happens. A group that a publisher is about to fill does not count.
-- Arguments
--   p_now  epoch seconds; NULL is the server's clock
-- Returns: seconds from now, not above 0 if something can be claimed at once; NULL for never.

CREATE FUNCTION "{schema}".harel_ready(p_now double precision) RETURNS double precision
LANGUAGE plpgsql {plans} AS $harel$
DECLARE
    v_number double precision;
BEGIN
    SELECT g.lock_expiry INTO v_number FROM "{schema}".transport_groups AS g
    WHERE g.lock_expiry < {held_from}
        AND (
            SELECT m.seq FROM "{schema}".transport_messages AS m
            WHERE m.group_id = g.group_id AND m.seq > g.settled ORDER BY m.seq LIMIT 1
        ) IS NOT NULL
    ORDER BY g.lock_expiry, g.arrival
    LIMIT 1;
    RETURN v_number - {now};
END
$harel$;
