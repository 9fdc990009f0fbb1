-- Leases the group that has waited longest, and returns its head.
-- Arguments
--   p_token       its token
--   p_visibility  seconds
--   p_fresh       where the walk begins among the groups that were never served, and
--   p_served      among those that were: hints, numbers below which nothing is expected
--   p_soft        whether a crash of the server may undo it; the groups are simply claimable again then
--   p_now         epoch seconds; NULL is the server's clock
-- Returns: a row, or none: what the lease is made of; then where the walk ended (the number that the group had), and how
--   many entries of the index it read.
--
-- There is one function for each floor: only a literal lets the planner use the floor's index. The head is looked for in a
-- statement after the one that locked the group: only that sees what the one who had it before has settled.
-- FOR NO KEY UPDATE, because FOR UPDATE would skip each group that somebody is publishing to.

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
    v_now    double precision := {now};
    v_read   bigint := pg_stat_get_xact_tuples_returned('"{schema}".{claimable}'::regclass);
    v_row    tid;
    v_name   text;
    v_number double precision;
    v_passed tid[] := '{}';
BEGIN
    IF p_soft THEN
        SET LOCAL synchronous_commit = off;
    END IF;
    LOOP
        SELECT line.row, line.group_id, line.lock_expiry INTO v_row, v_name, v_number
        FROM (
            SELECT fresh.* FROM (
                SELECT g.ctid AS row, g.group_id, g.lock_expiry
                FROM "{schema}".transport_groups AS g
                WHERE g.lock_expiry >= p_fresh AND g.lock_expiry < least(v_now, 0.0)
                    AND g.ctid <> ALL (v_passed) {floor}
                ORDER BY g.lock_expiry, g.arrival
                FOR NO KEY UPDATE SKIP LOCKED
            ) AS fresh
            UNION ALL
            SELECT served.* FROM (
                SELECT g.ctid AS row, g.group_id, g.lock_expiry
                FROM "{schema}".transport_groups AS g
                WHERE g.lock_expiry >= greatest(p_served, 0.0) AND g.lock_expiry <= v_now
                    AND g.ctid <> ALL (v_passed) {floor}
                ORDER BY g.lock_expiry, g.arrival
                FOR NO KEY UPDATE SKIP LOCKED
            ) AS served
            LIMIT 1
        ) AS line;
        IF NOT FOUND THEN
            EXIT WHEN p_fresh = '-Infinity' AND p_served = '-Infinity';
            p_fresh := '-Infinity';
            p_served := '-Infinity';
            CONTINUE;
        END IF;

        UPDATE "{schema}".transport_groups AS g
        SET locked_by = p_token,
            lock_expiry = v_now + p_visibility,
            attempts = CASE WHEN g.head = first.seq THEN g.attempts + 1 ELSE 1 END,
            head = first.seq,
            since = v_now
        FROM (
            SELECT m.seq, m.event FROM "{schema}".transport_messages AS m
            WHERE m.group_id = v_name ORDER BY m.seq LIMIT 1
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
