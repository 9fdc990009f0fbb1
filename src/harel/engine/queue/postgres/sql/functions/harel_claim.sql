-- Leases the group that has waited longest, and returns its head.
-- Arguments
--   p_token       its token
--   p_visibility  seconds
--   p_fresh       where the walk begins among the groups that were never served, and
--   p_served      among those that were: hints, numbers below which nothing is expected
--   p_soft        whether a crash of the server may undo it; the groups are simply claimable again then
--   p_now         epoch seconds; NULL is the server's clock
-- Returns: a row, or none: what the lease is made of; then where the walk ended (the number that the group had), and
--   how many entries of the index it read.
--
-- There is one function for each floor: only a literal lets the planner use the floor's index. The head is looked for
-- in a statement after the one that locked the group: only that sees what the one who had it before has settled. A
-- publisher locks the name alone, and so is no hindrance.
--
-- The look for the head passes over the dead messages after settled. When there may be many, and nobody is publishing
-- to the group (see transport_names), the first message that is there says how far settled goes. That lock is not taken
-- in a caller's transaction, for whose end a publisher would then have to wait.

CREATE FUNCTION "{schema}".{claim}(
    p_token text, p_visibility double precision, p_fresh double precision, p_served double precision, p_soft boolean,
    p_now double precision
) RETURNS TABLE (
    group_id text, token text, attempt integer, expires_at double precision, seq bigint, event text,
    number double precision, walked bigint
)
LANGUAGE plpgsql {plans} AS $harel$
#variable_conflict use_column
DECLARE
    v_now     double precision := {now};
    v_read    bigint := pg_stat_get_xact_tuples_returned('"{schema}".{claimable}'::regclass);
    v_from    double precision := p_fresh;
    v_to      double precision := CASE WHEN p_served = '-Infinity' THEN v_now ELSE least(v_now, 0.0) END;
    v_row     tid;
    v_name    text;
    v_number  double precision;
    v_settled bigint;
    v_dead    integer;
    v_alone   boolean;
    v_passed  tid[] := '{}';
BEGIN
    IF p_soft THEN
        SET LOCAL synchronous_commit = off;
    END IF;
    LOOP
        SELECT g.ctid, g.group_id, g.lock_expiry, g.settled, g.dead INTO v_row, v_name, v_number, v_settled, v_dead
        FROM "{schema}".transport_groups AS g
        WHERE g.lock_expiry >= v_from AND g.lock_expiry <= v_to AND g.ctid <> ALL (v_passed) {floor}
        ORDER BY g.lock_expiry, g.arrival LIMIT 1
        FOR NO KEY UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            EXIT WHEN v_from = '-Infinity' AND v_to = v_now;
            v_from := CASE WHEN v_to = v_now THEN '-Infinity' ELSE p_served END;
            v_to := v_now;
            CONTINUE;
        END IF;

        v_alone := NULL;
        IF v_dead >= {dead_worth_a_look} AND {own_transaction} THEN
            PERFORM FROM "{schema}".transport_names AS n WHERE n.group_id = v_name FOR UPDATE SKIP LOCKED;
            v_alone := FOUND;
        END IF;
        UPDATE "{schema}".transport_groups AS g
        SET locked_by = p_token,
            lock_expiry = v_now + p_visibility,
            attempts = CASE WHEN g.head = first.seq THEN g.attempts + 1 ELSE 1 END,
            head = first.seq,
            since = v_now,
            settled = CASE WHEN v_alone THEN first.seq - 1 ELSE g.settled END,
            dead = CASE WHEN v_alone IS NULL THEN g.dead ELSE 0 END
        FROM (
            SELECT m.seq, m.event FROM "{schema}".transport_messages AS m
            WHERE m.group_id = v_name AND m.seq > v_settled ORDER BY m.seq LIMIT 1
        ) AS first
        WHERE g.ctid = v_row
        RETURNING g.attempts, first.seq, first.event INTO attempt, seq, event;
        IF FOUND THEN
            group_id := v_name;
            token := p_token;
            expires_at := v_now + p_visibility;
            number := v_number;
            walked := pg_stat_get_xact_tuples_returned('"{schema}".{claimable}'::regclass) - v_read;
            RETURN NEXT;
            EXIT;
        END IF;
        PERFORM "{schema}".harel_drop(ARRAY[v_row]);
        v_passed := v_passed || v_row;
    END LOOP;
END
$harel$;
