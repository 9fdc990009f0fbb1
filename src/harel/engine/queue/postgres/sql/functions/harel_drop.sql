-- Drops groups that have no messages, unless somebody is publishing to them at this moment.
-- Arguments
--   p_rows  where the groups' rows are; the caller has locked them FOR NO KEY UPDATE
-- Returns: how many were dropped. All others are as they were.
--
-- FOR UPDATE SKIP LOCKED waits for nobody's transaction: a group that a publisher holds is left, and a later claim
-- comes past it again. Whether there are messages is looked up in a statement that begins after the lock was had, so
-- that it sees what a publisher committed before. An older snapshot, as any isolation level but READ COMMITTED keeps
-- it, could not tell, so nothing is dropped there.
--
-- OFFSET 0 keeps the planner from turning a look at some rows into a walk of a whole index, which seems as cheap to it
-- while it believes that there are few.

CREATE FUNCTION "{schema}".harel_drop(p_rows tid[]) RETURNS bigint
LANGUAGE plpgsql {plans} AS $harel$
DECLARE
    v_rows    tid[];
    v_names   tid[];
    v_groups  text[];
    v_settled bigint[];
    v_count   bigint;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RETURN 0;
    END IF;
    SELECT array_agg(g.row), array_agg(name.row), array_agg(g.group_id), array_agg(g.settled)
    INTO v_rows, v_names, v_groups, v_settled
    FROM (
        SELECT g.ctid AS row, g.group_id, g.settled, g.lock_expiry FROM "{schema}".transport_groups AS g
        WHERE g.ctid = ANY (p_rows)
        OFFSET 0
    ) AS g
    CROSS JOIN LATERAL (
        SELECT n.ctid AS row FROM "{schema}".transport_names AS n WHERE n.group_id = g.group_id FOR UPDATE SKIP LOCKED
    ) AS name
    WHERE g.lock_expiry < {held_from};
    IF v_rows IS NULL THEN
        RETURN 0;
    END IF;
    WITH empty AS (
        SELECT g.row, g.name
        FROM unnest(v_rows, v_names, v_groups, v_settled) AS g (row, name, group_id, settled)
        WHERE (
            SELECT m.seq FROM "{schema}".transport_messages AS m
            WHERE m.group_id = g.group_id AND m.seq > g.settled
            ORDER BY m.seq LIMIT 1
        ) IS NULL
    ), dropped AS (
        DELETE FROM "{schema}".transport_groups AS g WHERE g.ctid = ANY (ARRAY(SELECT empty.row FROM empty))
    ), named AS (
        DELETE FROM "{schema}".transport_names AS n WHERE n.ctid = ANY (ARRAY(SELECT empty.name FROM empty))
    )
    SELECT count(*) INTO v_count FROM empty;
    RETURN v_count;
END
$harel$;
