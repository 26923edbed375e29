-- What applications leave in their own transactions, until a replica lets it take effect. A row locks nothing: neither
-- a task nor a room waits for the transaction of an application.
CREATE TABLE outbox (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind       text        NOT NULL,
    subject    text        NOT NULL,
    task_id    uuid,
    run_id     uuid,
    input      text,
    dedupe_key text,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- What could not take effect, with the reason.
CREATE TABLE outbox_failed (
    id         bigint PRIMARY KEY,
    kind       text        NOT NULL,
    subject    text        NOT NULL,
    task_id    uuid,
    run_id     uuid,
    input      text,
    dedupe_key text,
    created_at timestamptz NOT NULL,
    error      text        NOT NULL,
    failed_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX outbox_failed_by_time ON outbox_failed (failed_at);

-- Leaves a run of a task in the transaction of the caller: it is made once that commits, and never if it rolls back.
-- Returns the id that the run will have. `json` keeps the text of the input as it is, escapes included, which `jsonb`
-- does not.
CREATE FUNCTION trigger(task text, input json DEFAULT NULL, dedupe_key text DEFAULT NULL) RETURNS uuid
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    -- The limits of the HTTP surface.
    most_bytes  CONSTANT integer := 1048576;
    most_levels CONSTANT integer := 64;
    now_us      CONSTANT bigint := extract(epoch FROM clock_timestamp()) * 1000000;
    found_task  uuid;
    brackets    text;
    run         uuid;
BEGIN
    IF task IS NULL THEN
        RAISE EXCEPTION 'switchboard.trigger: the name of the task is missing'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'The first argument is the name of a task.';
    END IF;
    SELECT id INTO found_task FROM switchboard.tasks WHERE name = task AND deleted_at IS NULL;
    IF found_task IS NULL THEN
        RAISE EXCEPTION 'switchboard.trigger: there is no task "%"', left(task, 128)
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Create the task first; capital letters matter in its name.';
    END IF;
    IF dedupe_key COLLATE "C" !~ '^[!-~]{1,200}$' THEN
        RAISE EXCEPTION 'switchboard.trigger: the deduplication key is not usable'
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Use 1 to 200 visible ASCII characters without spaces, or NULL for none.';
    END IF;
    IF octet_length(input::text) > most_bytes THEN
        RAISE EXCEPTION 'switchboard.trigger: the input has % bytes and may have %', octet_length(input::text), most_bytes
            USING ERRCODE = 'program_limit_exceeded', HINT = 'Store the data in a table and pass its key.';
    END IF;
    -- Without strings and what stands between brackets, each pass takes away the innermost level.
    brackets := regexp_replace(input::text, '"(?:[^"\\]|\\.)*"|[^][{}"]+', '', 'g');
    brackets := translate(brackets, '{}', '[]');
    FOR level IN 1..most_levels LOOP
        EXIT WHEN brackets = '' OR brackets IS NULL;
        brackets := replace(brackets, '[]', '');
    END LOOP;
    IF brackets <> '' THEN
        RAISE EXCEPTION 'switchboard.trigger: the input is nested deeper than % levels', most_levels
            USING ERRCODE = 'program_limit_exceeded', HINT = 'Pass less structure.';
    END IF;

    -- A UUIDv7 (RFC 9562): 48 bits of milliseconds, the version, 12 bits of their fraction (section 6.2, method 3), and
    -- the variant and the random bits of a v4.
    run := encode(
        int8send(((now_us / 1000) << 16) | x'7000'::bigint | (now_us % 1000) * 4096 / 1000)
            || substring(uuid_send(gen_random_uuid()) FROM 9),
        'hex'
    )::uuid;
    INSERT INTO switchboard.outbox (kind, subject, task_id, run_id, input, dedupe_key)
    VALUES ('trigger', task, found_task, run, input::text, dedupe_key);
    -- One signal for a transaction is enough.
    INSERT INTO switchboard.signals (kind, key)
    SELECT 'outbox_filled', 'outbox'
    WHERE NOT EXISTS (
        SELECT FROM switchboard.signals AS signal
        WHERE signal.xid = pg_current_xact_id() AND signal.kind = 'outbox_filled'
    );
    RETURN run;
END
$function$;

-- Whoever may call it is up to the owner of the database:
-- GRANT USAGE ON SCHEMA switchboard TO app;
-- GRANT EXECUTE ON FUNCTION switchboard.trigger(text, json, text) TO app;
REVOKE ALL ON FUNCTION trigger(text, json, text) FROM PUBLIC;
