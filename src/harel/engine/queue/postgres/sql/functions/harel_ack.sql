-- Settles a head: deletes it, then frees its group or drops it.
-- Arguments
--   p_group, p_seq, p_attempt, p_token  of the lease
--   p_now                               epoch seconds; NULL is the server's clock
-- Returns: whether the lease was current.
--
-- Where a later message is there already, one statement does it. It may be wrong about that only if a purge came
-- between, and then the next claim finds the group empty. Where none is there, or the lease was lost, the lock and the
-- fence come first, and each later statement sees all that was committed before they were had.

CREATE FUNCTION "{schema}".harel_ack(
    p_group text, p_seq bigint, p_attempt integer, p_token text, p_now double precision
) RETURNS boolean
LANGUAGE plpgsql {plans} AS $harel$
DECLARE
    v_now double precision := {now};
    v_row tid;
BEGIN
    WITH freed AS (
        UPDATE "{schema}".transport_groups AS g
        SET {freed}
        WHERE {lease}
            AND (
                g.lock_expiry >= {held_from}
                OR EXISTS (SELECT FROM "{schema}".transport_messages AS m WHERE m.group_id = p_group AND m.seq > p_seq)
            )
        RETURNING g.ctid AS row
    ), gone AS (
        DELETE FROM "{schema}".transport_messages AS m USING freed WHERE m.group_id = p_group AND m.seq = p_seq
    )
    SELECT freed.row INTO v_row FROM freed;
    IF FOUND THEN
        RETURN true;
    END IF;

    WITH mine AS (
        SELECT g.ctid AS row FROM "{schema}".transport_groups AS g WHERE {lease} FOR NO KEY UPDATE
    ), gone AS (
        DELETE FROM "{schema}".transport_messages AS m USING mine WHERE m.group_id = p_group AND m.seq = p_seq
    )
    SELECT mine.row INTO v_row FROM mine;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF "{schema}".harel_drop(ARRAY[v_row]) = 0 THEN
        v_now := {now};
        UPDATE "{schema}".transport_groups AS g SET {freed} WHERE g.ctid = v_row;
    END IF;
    RETURN true;
END
$harel$;
