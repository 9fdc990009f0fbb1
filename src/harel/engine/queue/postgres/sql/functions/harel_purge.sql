-- Deletes a group's messages, except the one that a live lease holds; then what is left of an empty group.
-- Arguments
--   p_group
--   p_now    epoch seconds; NULL is the server's clock
-- Returns: how many were deleted.

CREATE FUNCTION "{schema}".harel_purge(p_group text, p_now double precision) RETURNS bigint
LANGUAGE plpgsql {plans} AS $harel$
DECLARE
    v_row   tid;
    v_kept  bigint;
    v_count bigint;
BEGIN
    SELECT g.ctid,
        CASE
            WHEN g.locked_by IS NOT NULL
                AND g.lock_expiry - CASE WHEN g.lock_expiry >= {held_from} THEN {held} ELSE 0.0 END > {now}
            THEN g.head
        END
    INTO v_row, v_kept
    FROM "{schema}".transport_groups AS g
    WHERE g.group_id = p_group
    ORDER BY g.head DESC, g.attempts DESC LIMIT 1
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    DELETE FROM "{schema}".transport_messages AS m WHERE m.group_id = p_group AND m.seq IS DISTINCT FROM v_kept;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    IF v_kept IS NOT NULL THEN
        UPDATE "{schema}".transport_groups AS g SET dead = g.dead + v_count WHERE g.ctid = v_row;
    ELSIF "{schema}".harel_drop(ARRAY[v_row]) = 0 THEN
        UPDATE "{schema}".transport_groups AS g SET locked_by = NULL, attempts = 0, dead = g.dead + v_count
        WHERE g.ctid = v_row;
    END IF;
    RETURN v_count;
END
$harel$;
