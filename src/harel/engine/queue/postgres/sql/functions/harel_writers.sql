-- Says which transactions are writing the queue at this moment. Who looked whether anybody waits before somebody did,
-- and commits after that one looked, is among them and wakes nobody.
-- Arguments
--   p_among  those that count, as this function returned them; NULL is all
-- Returns: their names with commas between, an empty text for none.

CREATE FUNCTION "{schema}".harel_writers(p_among text) RETURNS text
LANGUAGE sql STABLE AS $harel$
    SELECT coalesce(string_agg(DISTINCT l.virtualtransaction, ','), '')
    FROM pg_locks AS l
    WHERE l.locktype = 'relation'
        AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
        AND l.relation IN (
            '"{schema}".transport_messages'::regclass::oid, '"{schema}".transport_groups'::regclass::oid
        )
        AND l.mode = 'RowExclusiveLock'
        AND l.pid <> pg_backend_pid()
        AND (p_among IS NULL OR l.virtualtransaction = ANY (string_to_array(p_among, ',')));
$harel$;
