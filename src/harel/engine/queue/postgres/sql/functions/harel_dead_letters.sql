-- Lists dead letters by seq, a page.
-- Arguments
--   p_group  only this group's; NULL for all
--   p_limit
--   p_after  the last seq of the page before; -1 for the first
-- Returns: a row a dead letter, the fields of DeadLetter.

CREATE FUNCTION "{schema}".harel_dead_letters(p_group text, p_limit bigint, p_after bigint) RETURNS TABLE (
    seq bigint, group_id text, event text, attempts integer, priority smallint, reason text,
    rejected_at double precision
)
LANGUAGE plpgsql STABLE {plans} AS $harel$
#variable_conflict use_column
BEGIN
    IF p_group IS NULL THEN
        RETURN QUERY
        SELECT d.seq, d.group_id, d.event, d.attempts, d.priority, d.reason, d.rejected_at
        FROM "{schema}".transport_dead_letters AS d
        WHERE d.seq > p_after ORDER BY d.seq LIMIT p_limit;
    ELSE
        RETURN QUERY
        SELECT d.seq, d.group_id, d.event, d.attempts, d.priority, d.reason, d.rejected_at
        FROM "{schema}".transport_dead_letters AS d
        WHERE d.group_id = p_group AND d.seq > p_after ORDER BY d.seq LIMIT p_limit;
    END IF;
END
$harel$;
