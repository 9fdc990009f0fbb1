-- Adds messages at their groups' tails, all or none, and the groups that do not exist yet.
-- Arguments
--   p_groups, p_events, p_priorities  one of each for every message, in order
--   p_ahead                           seconds that a new group is put before now
--   p_now                             epoch seconds; NULL is the server's clock
-- Returns: nothing.
--
-- As harel_publish. Names are made, and locked, in their order, so that no two batches wait for each other crosswise;
-- what breaks ties keeps the order of the batch. Hashing is for the batch itself, which no index holds.

CREATE FUNCTION "{schema}".harel_publish_many(
    p_groups text[], p_events text[], p_priorities smallint[], p_ahead double precision, p_now double precision
) RETURNS void
LANGUAGE plpgsql {plans} SET enable_hashjoin = on AS $harel$
DECLARE
    v_now     double precision := {now};
    v_arrival bigint := {next};
    v_names   text[] := ARRAY(SELECT DISTINCT unnest(p_groups));
    v_missing text[] := v_names;
    v_found   text[];
BEGIN
    LOOP
        WITH made AS (
            INSERT INTO "{schema}".transport_names AS n (group_id)
            SELECT missing.group_id FROM unnest(v_missing) AS missing (group_id) ORDER BY missing.group_id
            ON CONFLICT (group_id) DO NOTHING
            RETURNING n.group_id
        ), placed AS (
            INSERT INTO "{schema}".transport_groups
                (group_id, lock_expiry, priority, attempts, since, arrival, settled, dead)
            SELECT made.group_id, v_now - p_ahead, first.priority, 0, v_now, v_arrival + first.place, v_arrival, 0
            FROM made
            JOIN (
                SELECT DISTINCT ON (message.group_id) message.group_id, message.priority, message.place
                FROM unnest(p_groups, p_priorities) WITH ORDINALITY AS message (group_id, priority, place)
                ORDER BY message.group_id, message.place
            ) AS first ON first.group_id = made.group_id
        )
        SELECT array_agg(made.group_id) INTO v_found FROM made;
        v_missing := ARRAY(SELECT unnest(v_missing) EXCEPT SELECT unnest(v_found));
        EXIT WHEN cardinality(v_missing) = 0;

        SELECT array_agg(there.group_id) INTO v_found
        FROM (
            SELECT kept.*
            FROM (
                SELECT missing.group_id FROM unnest(v_missing) AS missing (group_id) ORDER BY missing.group_id
            ) AS missing
            CROSS JOIN LATERAL (
                SELECT n.group_id FROM "{schema}".transport_names AS n
                WHERE n.group_id = missing.group_id
                FOR KEY SHARE
            ) AS kept
        ) AS there;
        v_missing := ARRAY(SELECT unnest(v_missing) EXCEPT SELECT unnest(v_found));
        EXIT WHEN cardinality(v_missing) = 0;
    END LOOP;

    INSERT INTO "{schema}".transport_messages (group_id, event)
    SELECT message.group_id, message.event
    FROM unnest(p_groups, p_events) WITH ORDINALITY AS message (group_id, event, place)
    ORDER BY message.place;
    IF {somebody_waits} AND EXISTS (
        SELECT FROM unnest(v_names) AS name (group_id) WHERE "{schema}".harel_claimable(name.group_id, v_now)
    ) THEN
        PERFORM "{schema}".harel_wake();
    END IF;
END
$harel$;
