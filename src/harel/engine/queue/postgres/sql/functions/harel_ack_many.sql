-- Settles heads: deletes each, then frees its group or drops it.
-- Arguments
--   p_groups, p_seqs, p_attempts, p_tokens  of each lease, no lease twice
--   p_now                                   epoch seconds; NULL is the server's clock
-- Returns: a row for each token that was current.
--
-- The lock and the fence come first, in the order of the groups' names, so that no two batches wait for each other
-- crosswise; each later statement sees all that was committed before they were had.

CREATE FUNCTION "{schema}".harel_ack_many(
    p_groups text[], p_seqs bigint[], p_attempts integer[], p_tokens text[], p_now double precision
) RETURNS SETOF text
LANGUAGE plpgsql {plans} AS $harel$
DECLARE
    v_now    double precision;
    v_rows   tid[];
    v_names  text[];
    v_seqs   bigint[];
    v_tokens text[];
    v_freed  bigint;
BEGIN
    SELECT array_agg(mine.row), array_agg(mine.group_id), array_agg(mine.head), array_agg(mine.locked_by)
    INTO v_rows, v_names, v_seqs, v_tokens
    FROM (
        SELECT held.*
        FROM (
            SELECT lease.* FROM unnest(p_groups, p_seqs, p_attempts, p_tokens) AS lease (group_id, seq, attempt, token)
            ORDER BY lease.group_id
        ) AS lease
        CROSS JOIN LATERAL (
            SELECT g.ctid AS row, g.group_id, g.head, g.locked_by FROM "{schema}".transport_groups AS g
            WHERE g.group_id = lease.group_id AND g.head = lease.seq AND g.attempts = lease.attempt
                AND g.locked_by = lease.token
            FOR NO KEY UPDATE
        ) AS held
    ) AS mine;
    IF v_rows IS NULL THEN
        RETURN;
    END IF;
    v_now := {now};
    DELETE FROM "{schema}".transport_messages AS m
    WHERE m.ctid = ANY (ARRAY(
        SELECT settled.row
        FROM unnest(v_names, v_seqs) AS head (group_id, seq)
        CROSS JOIN LATERAL (
            SELECT m.ctid AS row FROM "{schema}".transport_messages AS m
            WHERE m.group_id = head.group_id AND m.seq = head.seq
            OFFSET 0
        ) AS settled
    ));

    UPDATE "{schema}".transport_groups AS g
    SET {freed}
    WHERE g.ctid = ANY (v_rows)
        AND (
            g.lock_expiry >= {held_from}
            OR EXISTS (SELECT FROM "{schema}".transport_messages AS m WHERE m.group_id = g.group_id AND m.seq > g.head)
        );
    GET DIAGNOSTICS v_freed = ROW_COUNT;
    -- What is at v_rows is by now only what was neither freed nor dropped.
    IF v_freed < cardinality(v_rows) AND v_freed + "{schema}".harel_drop(v_rows) < cardinality(v_rows) THEN
        UPDATE "{schema}".transport_groups AS g SET {freed} WHERE g.ctid = ANY (v_rows);
    END IF;
    RETURN QUERY SELECT unnest(v_tokens);
END
$harel$;
