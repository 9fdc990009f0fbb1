-- Leases the groups that have waited longest, and returns their heads.
-- Arguments
--   p_stem        what the tokens begin with; their last twelve digits number the leases in their order
--   p_limit       how many at most
--   p_visibility  seconds
--   p_fresh       where the walk begins among the groups that were never served, and
--   p_served      among those that were: hints, numbers below which nothing is expected
--   p_soft        whether a crash of the server may undo it; the groups are simply claimable again then
--   p_now         epoch seconds; NULL is the server's clock
-- Returns: a row a lease, in their order: what it is made of; then where the walk that found it ended (the number that
--   the last group had), and how many entries of the index all of it read.
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
    v_from    double precision := p_fresh;
    v_to      double precision := CASE WHEN p_served = '-Infinity' THEN v_now ELSE least(v_now, 0.0) END;
    v_rows    tid[];
    v_names   text[];
    v_settled bigint[];
    v_number  double precision;
    v_looks   text[];
    v_alone   text[];
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
        SELECT
            array_agg(line.row), array_agg(line.group_id), array_agg(line.settled), max(line.lock_expiry),
            array_agg(line.group_id) FILTER (WHERE line.dead >= {dead_worth_a_look})
        INTO v_rows, v_names, v_settled, v_number, v_looks
        FROM (
            SELECT g.ctid AS row, g.group_id, g.lock_expiry, g.settled, g.dead
            FROM "{schema}".transport_groups AS g
            WHERE g.lock_expiry >= v_from AND g.lock_expiry <= v_to AND g.ctid <> ALL (v_passed) {floor}
            ORDER BY g.lock_expiry, g.arrival LIMIT v_left
            FOR NO KEY UPDATE SKIP LOCKED
        ) AS line;
        IF v_rows IS NULL THEN
            EXIT WHEN v_to = v_now AND (v_from = '-Infinity' OR v_left < p_limit);
            v_from := CASE WHEN v_to = v_now THEN '-Infinity' ELSE p_served END;
            v_to := v_now;
            CONTINUE;
        END IF;

        v_alone := NULL;
        IF v_looks IS NOT NULL AND {own_transaction} THEN
            v_alone := ARRAY(
                SELECT alone.group_id
                FROM unnest(v_looks) AS looks (group_id)
                CROSS JOIN LATERAL (
                    SELECT n.group_id FROM "{schema}".transport_names AS n
                    WHERE n.group_id = looks.group_id
                    FOR UPDATE SKIP LOCKED
                ) AS alone
            );
        END IF;
        RETURN QUERY
        UPDATE "{schema}".transport_groups AS g
        SET locked_by = p_stem || lpad(to_hex(v_places + head.place), 12, '0'),
            lock_expiry = v_now + p_visibility,
            attempts = CASE WHEN g.head = head.seq THEN g.attempts + 1 ELSE 1 END,
            head = head.seq,
            since = v_now,
            settled = CASE
                WHEN g.dead >= {dead_worth_a_look} AND g.group_id = ANY (v_alone) THEN head.seq - 1 ELSE g.settled
            END,
            dead = CASE WHEN g.dead >= {dead_worth_a_look} AND v_alone IS NOT NULL THEN 0 ELSE g.dead END
        FROM (
            SELECT taken.row, taken.place, m.seq, m.event
            FROM unnest(v_rows, v_names, v_settled) WITH ORDINALITY AS taken (row, group_id, settled, place)
            CROSS JOIN LATERAL (
                SELECT m.seq, m.event FROM "{schema}".transport_messages AS m
                WHERE m.group_id = taken.group_id AND m.seq > taken.settled ORDER BY m.seq LIMIT 1
            ) AS m
        ) AS head
        WHERE g.ctid = head.row
        RETURNING g.group_id, g.locked_by, g.attempts, g.lock_expiry, head.seq, head.event, v_number,
            pg_stat_get_xact_tuples_returned('"{schema}".{claimable}'::regclass) - v_read;
        GET DIAGNOSTICS v_count = ROW_COUNT;
        v_left := v_left - v_count;
        v_places := v_places + cardinality(v_rows);
        CONTINUE WHEN v_count = cardinality(v_rows) AND v_to < v_now;
        EXIT WHEN v_count = cardinality(v_rows);

        v_empty := ARRAY(SELECT g.ctid FROM "{schema}".transport_groups AS g WHERE g.ctid = ANY (v_rows));
        PERFORM "{schema}".harel_drop(v_empty);
        v_passed := v_passed || v_empty;
    END LOOP;
END
$harel$;
