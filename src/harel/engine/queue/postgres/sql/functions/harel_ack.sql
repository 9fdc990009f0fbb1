-- Settles a head: deletes it, then frees its group or drops it.
-- Arguments
--   p_group, p_token  of the lease
--   p_now             epoch seconds; NULL is the server's clock
-- Returns: whether the lease was current.
--
-- The lock and the fence come first; each later statement sees all that was committed before they were had. A message
-- with a smaller number, which was committed late, is found by harel_drop, and the group is freed in the end.

CREATE FUNCTION "{schema}".harel_ack(p_group text, p_token text, p_now double precision) RETURNS boolean
LANGUAGE plpgsql {plans} AS $harel$
DECLARE
    v_now  double precision;
    v_row  tid;
    v_head bigint;
BEGIN
    SELECT g.ctid, g.head INTO v_row, v_head FROM "{schema}".transport_groups AS g
    WHERE g.group_id = p_group AND g.locked_by = p_token
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    v_now := {now};
    WITH settled AS (
        DELETE FROM "{schema}".transport_messages WHERE seq = v_head
    )
    UPDATE "{schema}".transport_groups AS g
    SET locked_by = NULL,
        lock_expiry = CASE WHEN g.lock_expiry >= {held_from} THEN g.lock_expiry ELSE v_now END,
        attempts = 0,
        since = CASE WHEN g.lock_expiry >= {held_from} THEN g.since ELSE v_now END
    WHERE g.ctid = v_row
        AND (
            g.lock_expiry >= {held_from}
            OR EXISTS (SELECT FROM "{schema}".transport_messages AS m WHERE m.group_id = p_group AND m.seq > v_head)
        );
    IF NOT FOUND AND cardinality("{schema}".harel_drop(ARRAY[v_row])) = 0 THEN
        UPDATE "{schema}".transport_groups AS g
        SET locked_by = NULL, lock_expiry = v_now, attempts = 0, since = v_now
        WHERE g.ctid = v_row;
    END IF;
    RETURN true;
END
$harel$;
