-- Puts a dead letter back as a new message at its group's tail, once.
-- Arguments
--   p_seq    which
--   p_ahead  seconds that a new group is put before now
--   p_now    epoch seconds; NULL is the server's clock
-- Returns: whether there was such a dead letter.

CREATE FUNCTION "{schema}".harel_redrive(p_seq bigint, p_ahead double precision, p_now double precision)
RETURNS boolean
LANGUAGE plpgsql {plans} AS $harel$
DECLARE
    v_group    text;
    v_event    text;
    v_priority smallint;
BEGIN
    DELETE FROM "{schema}".transport_dead_letters AS d WHERE d.seq = p_seq
    RETURNING d.group_id, d.event, d.priority INTO v_group, v_event, v_priority;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM "{schema}".harel_publish(v_group, v_event, v_priority, p_ahead, p_now);
    RETURN true;
END
$harel$;
