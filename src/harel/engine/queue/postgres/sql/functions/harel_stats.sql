-- Counts the queue.
-- Arguments
--   p_now  epoch seconds; NULL is the server's clock
-- Returns: one row, the fields of QueueStats in their order.

CREATE FUNCTION "{schema}".harel_stats(p_now double precision) RETURNS TABLE (
    messages bigint, groups bigint, ready bigint, leased bigint, parked bigint, held bigint, dead_letters bigint,
    oldest_ready_s double precision
)
LANGUAGE sql STABLE AS $harel$
    SELECT
        (SELECT count(*) FROM "{schema}".transport_messages),
        count(g.group_id),
        count(*) FILTER (WHERE g.lock_expiry <= clock.now),
        count(*) FILTER (WHERE g.lock_expiry > clock.now AND g.lock_expiry < {held_from} AND g.locked_by IS NOT NULL),
        count(*) FILTER (WHERE g.lock_expiry > clock.now AND g.lock_expiry < {held_from} AND g.locked_by IS NULL),
        count(*) FILTER (WHERE g.lock_expiry >= {held_from}),
        (SELECT count(*) FROM "{schema}".transport_dead_letters),
        max(clock.now) - least(
            max(clock.now),
            min(g.lock_expiry) FILTER (WHERE g.lock_expiry < 0.0) + {fresh},
            min(g.lock_expiry) FILTER (WHERE g.lock_expiry >= 0.0)
        )
    FROM (SELECT {now} AS now) AS clock LEFT JOIN "{schema}".transport_groups AS g ON true
$harel$;
