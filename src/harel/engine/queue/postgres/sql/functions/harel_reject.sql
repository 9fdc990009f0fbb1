-- Moves a head to the dead letters, once, and settles it.
-- Arguments
--   p_group, p_seq, p_attempt, p_token  of the lease
--   p_reason                            any text
--   p_now                               epoch seconds; NULL is the server's clock
-- Returns: whether the lease was current.

CREATE FUNCTION "{schema}".harel_reject(
    p_group text, p_seq bigint, p_attempt integer, p_token text, p_reason text, p_now double precision
) RETURNS boolean
LANGUAGE plpgsql {plans} AS $harel$
DECLARE
    v_priority smallint;
BEGIN
    SELECT g.priority INTO v_priority FROM "{schema}".transport_groups AS g
    WHERE {lease}
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    INSERT INTO "{schema}".transport_dead_letters (seq, group_id, event, attempts, priority, reason, rejected_at)
    SELECT m.seq, m.group_id, m.event, p_attempt, v_priority, p_reason, {now}
    FROM "{schema}".transport_messages AS m
    WHERE m.group_id = p_group AND m.seq = p_seq
    ON CONFLICT (seq) DO NOTHING;
    RETURN "{schema}".harel_ack(p_group, p_seq, p_attempt, p_token, p_now);
END
$harel$;
