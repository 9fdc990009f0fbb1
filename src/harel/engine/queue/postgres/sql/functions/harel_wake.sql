-- Sends a NOTIFY, if somebody waits: a waiter's connection holds an advisory lock in shared mode. A NOTIFY makes
-- commits wait for each other all over the server, so none is sent for nobody. Another publisher may be at the same
-- test at this very moment; then the lock is free again at the next try.
-- Arguments: none. Returns: nothing.

CREATE FUNCTION "{schema}".harel_wake() RETURNS void
LANGUAGE plpgsql AS $harel$
BEGIN
    FOR i IN 1..3 LOOP
        IF NOT {somebody_waits} THEN
            RETURN;
        END IF;
    END LOOP;
    PERFORM pg_notify('{channel}', '');
END
$harel$;
