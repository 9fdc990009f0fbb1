-- Adds messages at their groups' tails, all or none, and the groups that do not exist yet.
-- Arguments
--   p_groups, p_events, p_priorities  one of each for every message, in order
--   p_ahead                           seconds that a new group is put before now
--   p_now                             epoch seconds; NULL is the server's clock
-- Returns: nothing.
--
-- As harel_publish. Rows are made, and locked, in the order of their names, so that no two batches wait for each other
-- crosswise; what breaks ties keeps the order of the batch.

CREATE FUNCTION "{schema}".harel_publish_many(
    p_groups text[], p_events text[], p_priorities smallint[], p_ahead double precision, p_now double precision
) RETURNS void
LANGUAGE plpgsql {plans} AS $harel$
DECLARE
    v_now       double precision := {now};
    v_arrival   bigint := {next};
    v_missing   text[];
    v_names     text[];
    v_claimable boolean;
    v_wake      boolean := false;
BEGIN
    LOOP
        WITH made AS (
            INSERT INTO "{schema}".transport_groups AS g (group_id, lock_expiry, priority, attempts, since, arrival)
            SELECT DISTINCT ON (message.group_id)
                message.group_id, v_now - p_ahead, message.priority, 0, v_now, v_arrival + message.place
            FROM unnest(p_groups, p_priorities) WITH ORDINALITY AS message (group_id, priority, place)
            WHERE v_missing IS NULL OR message.group_id = ANY (v_missing)
            ORDER BY message.group_id, message.place
            ON CONFLICT (group_id) DO NOTHING
            RETURNING g.group_id
        )
        SELECT array_agg(made.group_id) INTO v_names FROM made;
        v_wake := v_wake OR v_names IS NOT NULL;
        v_missing := ARRAY(SELECT unnest(coalesce(v_missing, p_groups)) EXCEPT SELECT unnest(v_names));
        EXIT WHEN cardinality(v_missing) = 0;

        SELECT array_agg(there.group_id), bool_or(there.lock_expiry <= v_now) INTO v_names, v_claimable
        FROM (
            SELECT kept.*
            FROM (
                SELECT missing.group_id FROM unnest(v_missing) AS missing (group_id) ORDER BY missing.group_id
            ) AS missing
            CROSS JOIN LATERAL (
                SELECT g.group_id, g.lock_expiry FROM "{schema}".transport_groups AS g
                WHERE g.group_id = missing.group_id
                FOR KEY SHARE
            ) AS kept
        ) AS there;
        v_wake := v_wake OR coalesce(v_claimable, false);
        v_missing := ARRAY(SELECT unnest(v_missing) EXCEPT SELECT unnest(v_names));
        EXIT WHEN cardinality(v_missing) = 0;
    END LOOP;

    INSERT INTO "{schema}".transport_messages (group_id, event)
    SELECT message.group_id, message.event
    FROM unnest(p_groups, p_events) WITH ORDINALITY AS message (group_id, event, place)
    ORDER BY message.place;
    IF v_wake AND {somebody_waits} THEN
        PERFORM "{schema}".harel_wake();
    END IF;
END
$harel$;
