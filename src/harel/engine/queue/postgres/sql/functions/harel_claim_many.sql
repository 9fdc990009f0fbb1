-- Leases the groups that have waited longest, and returns their heads.
-- Arguments
--   p_stem        what the tokens begin with; their last twelve digits number the leases in their order
--   p_limit       how many at most
--   p_visibility  seconds
--   p_fresh       where the walk begins among the groups that were never served, and
--   p_served      among those that were: hints, numbers below which nothing is expected
--   p_soft        whether a crash of the server may undo it; the groups are simply claimable again then
--   p_now         epoch seconds; NULL is the server's clock
-- Returns: a row a lease, in their order: what it is made of; then where the walk ended (the number that the group
--   had), and how many entries of the index all of it read.
--
-- As harel_claim.

CREATE FUNCTION "{schema}".{claim}(
    p_stem text, p_limit bigint, p_visibility double precision,
    p_fresh double precision, p_served double precision, p_soft boolean, p_now double precision
) RETURNS TABLE (
    group_id text, token text, attempt integer, expires_at double precision, seq bigint, event text,
    number double precision, walked bigint
)
LANGUAGE plpgsql {plans} AS $harel$
#variable_conflict use_column
DECLARE
    v_now     double precision := {now};
    v_read    bigint := pg_stat_get_xact_tuples_returned('"{schema}".{claimable}'::regclass);
    v_rows    tid[];
    v_names   text[];
    v_numbers double precision[];
    v_left    bigint := p_limit;
    v_places  bigint := 0;
    v_count   bigint;
    v_empty   tid[];
    v_passed  tid[] := '{}';
BEGIN
    IF p_soft THEN
        SET LOCAL synchronous_commit = off;
    END IF;
    WHILE v_left > 0 LOOP
        SELECT array_agg(line.row), array_agg(line.group_id), array_agg(line.lock_expiry)
        INTO v_rows, v_names, v_numbers
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
            LIMIT v_left
        ) AS line;
        IF v_rows IS NULL THEN
            EXIT WHEN v_left < p_limit OR (p_fresh = '-Infinity' AND p_served = '-Infinity');
            p_fresh := '-Infinity';
            p_served := '-Infinity';
            CONTINUE;
        END IF;

        RETURN QUERY
        UPDATE "{schema}".transport_groups AS g
        SET locked_by = p_stem || lpad(to_hex(v_places + head.place), 12, '0'),
            lock_expiry = v_now + p_visibility,
            attempts = CASE WHEN g.head = head.seq THEN g.attempts + 1 ELSE 1 END,
            head = head.seq,
            since = v_now
        FROM (
            SELECT taken.row, taken.number, taken.place, m.seq, m.event
            FROM unnest(v_rows, v_names, v_numbers) WITH ORDINALITY AS taken (row, group_id, number, place)
            CROSS JOIN LATERAL (
                SELECT m.seq, m.event FROM "{schema}".transport_messages AS m
                WHERE m.group_id = taken.group_id ORDER BY m.seq LIMIT 1
            ) AS m
        ) AS head
        WHERE g.ctid = head.row
        RETURNING g.group_id, g.locked_by, g.attempts, g.lock_expiry, head.seq, head.event, head.number,
            pg_stat_get_xact_tuples_returned('"{schema}".{claimable}'::regclass) - v_read;
        GET DIAGNOSTICS v_count = ROW_COUNT;
        v_left := v_left - v_count;
        v_places := v_places + cardinality(v_rows);
        EXIT WHEN v_count = cardinality(v_rows);

        v_empty := ARRAY(SELECT g.ctid FROM "{schema}".transport_groups AS g WHERE g.ctid = ANY (v_rows));
        PERFORM "{schema}".harel_drop(v_empty);
        v_passed := v_passed || v_empty;
    END LOOP;
END
$harel$;
