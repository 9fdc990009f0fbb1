-- Renews leases from now; a hold stays.
-- Arguments
--   p_groups, p_seqs, p_attempts, p_tokens  of each lease, no lease twice
--   p_visibility                            seconds
--   p_soft                                  whether a crash of the server may undo it; the leases run out sooner then
--   p_now                                   epoch seconds; NULL is the server's clock
-- Returns: a row for each lease that was current: its token, and when it runs out.
--
-- The locks come in the order of harel_ack_many, so that no two batches wait for each other crosswise.

CREATE FUNCTION "{schema}".harel_extend_many(
    p_groups text[], p_seqs bigint[], p_attempts integer[], p_tokens text[], p_visibility double precision,
    p_soft boolean, p_now double precision
) RETURNS TABLE (token text, expires_at double precision)
LANGUAGE plpgsql {plans} AS $harel$
DECLARE
    v_now  double precision;
    v_rows tid[];
BEGIN
    IF p_soft THEN
        SET LOCAL synchronous_commit = off;
    END IF;
    SELECT array_agg(mine.row) INTO v_rows
    FROM (
        SELECT held.row
        FROM (
            SELECT lease.* FROM unnest(p_groups, p_seqs, p_attempts, p_tokens) AS lease (group_id, seq, attempt, token)
            ORDER BY lease.group_id
        ) AS lease
        CROSS JOIN LATERAL (
            SELECT g.ctid AS row FROM "{schema}".transport_groups AS g
            WHERE g.group_id = lease.group_id AND g.head = lease.seq AND g.attempts = lease.attempt
                AND g.locked_by = lease.token
            FOR NO KEY UPDATE
        ) AS held
    ) AS mine;
    v_now := {now};
    RETURN QUERY
    UPDATE "{schema}".transport_groups AS g
    SET lock_expiry = v_now + p_visibility + CASE WHEN g.lock_expiry >= {held_from} THEN {held} ELSE 0.0 END
    WHERE g.ctid = ANY (v_rows)
    RETURNING g.locked_by, v_now + p_visibility;
END
$harel$;
