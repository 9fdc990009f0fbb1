-- Drops groups that have no messages, unless somebody is publishing to them at this moment.
-- Arguments
--   p_rows  where the groups' rows are; the caller has locked them FOR NO KEY UPDATE
-- Returns: the names of those that were dropped. All others are as they were.
--
-- FOR UPDATE SKIP LOCKED waits for nobody's transaction: a row that a publisher holds is left, and a later claim
-- comes past it again. Whether there are messages is looked up in a statement that begins after the lock was had, so
-- that it sees what a publisher committed before. An older snapshot, as any isolation level but READ COMMITTED keeps
-- it, could not tell, so nothing is dropped there.

CREATE FUNCTION "{schema}".harel_drop(p_rows tid[]) RETURNS text[]
LANGUAGE plpgsql {plans} AS $harel$
DECLARE
    v_rows  tid[];
    v_names text[];
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RETURN '{}';
    END IF;
    SELECT array_agg(mine.row) INTO v_rows
    FROM (
        SELECT g.ctid AS row FROM "{schema}".transport_groups AS g
        WHERE g.ctid = ANY (p_rows) AND g.lock_expiry < {held_from}
        FOR UPDATE SKIP LOCKED
    ) AS mine;
    IF v_rows IS NULL THEN
        RETURN '{}';
    END IF;
    WITH dropped AS (
        DELETE FROM "{schema}".transport_groups AS g
        WHERE g.ctid = ANY (v_rows)
            AND (
                SELECT m.seq FROM "{schema}".transport_messages AS m WHERE m.group_id = g.group_id ORDER BY m.seq LIMIT 1
            ) IS NULL
        RETURNING g.group_id
    )
    SELECT array_agg(dropped.group_id) INTO v_names FROM dropped;
    RETURN coalesce(v_names, '{}');
END
$harel$;
