-- Counts the queue: one row, the fields of QueueStats in their order.

SELECT
    (SELECT count(*) FROM {prefix}_messages),
    count(*),
    count(*) FILTER (WHERE lock_expiry <= {now}),
    count(*) FILTER (WHERE lock_expiry > {now} AND lock_expiry < {held_from} AND locked_by IS NOT NULL),
    count(*) FILTER (WHERE lock_expiry > {now} AND lock_expiry < {held_from} AND locked_by IS NULL),
    count(*) FILTER (WHERE lock_expiry >= {held_from}),
    (SELECT count(*) FROM {prefix}_dead_letters),
    {now} - min(
        {now},
        coalesce((SELECT min(lock_expiry) + {fresh} FROM {prefix}_groups WHERE lock_expiry < 0), {now}),
        coalesce((SELECT min(lock_expiry) FROM {prefix}_groups WHERE lock_expiry >= 0), {now})
    )
FROM {prefix}_groups;
