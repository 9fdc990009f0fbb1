-- A group's first messages.
-- Arguments
--   p_group
--   p_limit
-- Returns: a row a message.

CREATE FUNCTION "{schema}".harel_peek(p_group text, p_limit bigint) RETURNS TABLE (seq bigint, event text)
LANGUAGE sql STABLE {plans} AS $harel$
    SELECT m.seq, m.event FROM "{schema}".transport_messages AS m
    WHERE m.group_id = p_group ORDER BY m.seq LIMIT p_limit
$harel$;
