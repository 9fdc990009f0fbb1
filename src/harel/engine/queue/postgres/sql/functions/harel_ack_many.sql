-- Settles heads: deletes each, then frees its group or drops it.
-- Arguments
--   p_groups, p_tokens  of each lease, no lease twice
--   p_now               epoch seconds; NULL is the server's clock
-- Returns: a row for each token that was current.
--
-- The lock and the fence come first, in the order of the groups' names, so that no two batches wait for each other
-- crosswise; each later statement sees all that was committed before they were had.

CREATE FUNCTION "{schema}".harel_ack_many(p_groups text[], p_tokens text[], p_now double precision) RETURNS SETOF text
LANGUAGE plpgsql {plans} AS $harel$
DECLARE
    v_now    double precision;
    v_rows   tid[];
    v_seqs   bigint[];
    v_tokens text[];
    v_freed  bigint;
    v_gone   bigint;
BEGIN
    SELECT array_agg(mine.row), array_agg(mine.head), array_agg(mine.locked_by) INTO v_rows, v_seqs, v_tokens
    FROM (
        SELECT held.*
        FROM (
            SELECT lease.group_id, lease.token FROM unnest(p_groups, p_tokens) AS lease (group_id, token)
            ORDER BY lease.group_id
        ) AS lease
        CROSS JOIN LATERAL (
            SELECT g.ctid AS row, g.head, g.locked_by FROM "{schema}".transport_groups AS g
            WHERE g.group_id = lease.group_id AND g.locked_by = lease.token
            FOR NO KEY UPDATE
        ) AS held
    ) AS mine;
    IF v_rows IS NULL THEN
        RETURN;
    END IF;
    v_now := {now};
    DELETE FROM "{schema}".transport_messages WHERE seq = ANY (v_seqs);

    UPDATE "{schema}".transport_groups AS g
    SET locked_by = NULL,
        lock_expiry = CASE WHEN g.lock_expiry >= {held_from} THEN g.lock_expiry ELSE v_now END,
        attempts = 0,
        since = CASE WHEN g.lock_expiry >= {held_from} THEN g.since ELSE v_now END
    WHERE g.ctid = ANY (v_rows)
        AND (
            g.lock_expiry >= {held_from}
            OR EXISTS (SELECT FROM "{schema}".transport_messages AS m WHERE m.group_id = g.group_id AND m.seq > g.head)
        );
    GET DIAGNOSTICS v_freed = ROW_COUNT;
    IF v_freed < cardinality(v_rows) THEN
        v_gone := cardinality("{schema}".harel_drop(v_rows));
        IF v_freed + v_gone < cardinality(v_rows) THEN
            UPDATE "{schema}".transport_groups AS g
            SET locked_by = NULL, lock_expiry = v_now, attempts = 0, since = v_now
            WHERE g.ctid = ANY (v_rows);
        END IF;
    END IF;
    RETURN QUERY SELECT unnest(v_tokens);
END
$harel$;
