-- Moves a head to the dead letters, once, and settles it.
-- Arguments
--   p_group, p_token  of the lease
--   p_reason          any text
--   p_now             epoch seconds; NULL is the server's clock
-- Returns: whether the lease was current.

CREATE FUNCTION "{schema}".harel_reject(p_group text, p_token text, p_reason text, p_now double precision)
RETURNS boolean
LANGUAGE plpgsql {plans} AS $harel$
DECLARE
    v_head     bigint;
    v_attempts integer;
    v_priority smallint;
BEGIN
    SELECT g.head, g.attempts, g.priority INTO v_head, v_attempts, v_priority
    FROM "{schema}".transport_groups AS g
    WHERE g.group_id = p_group AND g.locked_by = p_token
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    INSERT INTO "{schema}".transport_dead_letters (seq, group_id, event, attempts, priority, reason, rejected_at)
    SELECT m.seq, m.group_id, m.event, v_attempts, v_priority, p_reason, {now}
    FROM "{schema}".transport_messages AS m
    WHERE m.seq = v_head
    ON CONFLICT (seq) DO NOTHING;
    RETURN "{schema}".harel_ack(p_group, p_token, p_now);
END
$harel$;
