-- Lists groups by name, a page.
-- Arguments
--   p_state    only groups in this state; NULL for all
--   p_limit
--   p_after    the last name of the page before; '' for the first
--   p_counted  count messages up to this many
--   p_now      epoch seconds; NULL is the server's clock
-- Returns: a row a group, the fields of GroupInfo in their order, and the token in place of the holder.

CREATE FUNCTION "{schema}".harel_groups(
    p_state text, p_limit bigint, p_after text, p_counted bigint, p_now double precision
) RETURNS TABLE (
    group_id text, state text, since double precision, until double precision, token text, attempts integer,
    messages bigint, priority smallint
)
LANGUAGE sql STABLE {plans} AS $harel$
    SELECT
        g.group_id, g.state,
        CASE g.state WHEN 'ready' THEN greatest(g.since, g.lock_expiry) ELSE g.since END,
        CASE WHEN g.state IN ('leased', 'parked') THEN g.lock_expiry END,
        CASE WHEN g.state IN ('leased', 'held') THEN g.locked_by END,
        g.attempts,
        (
            SELECT count(*) FROM (
                SELECT FROM "{schema}".transport_messages AS m
                WHERE m.group_id = g.group_id AND m.seq > g.settled LIMIT p_counted
            ) AS counted
        ),
        g.priority
    FROM (
        SELECT groups.*,
            CASE
                WHEN lock_expiry >= {held_from} THEN 'held'
                WHEN lock_expiry <= {now} THEN 'ready'
                WHEN locked_by IS NULL THEN 'parked'
                ELSE 'leased'
            END AS state
        FROM "{schema}".transport_groups AS groups
    ) AS g
    WHERE g.group_id > p_after AND (p_state IS NULL OR g.state = p_state)
    ORDER BY g.group_id
    LIMIT p_limit
$harel$;
