-- Events in the outbox: `subject` is the room, `input` the payload, `dedupe_key` the message id that the application
-- gave, and `msg_id` the one that was made where it gave none.
ALTER TABLE outbox ADD COLUMN event text, ADD COLUMN msg_id uuid;
ALTER TABLE outbox_failed ADD COLUMN event text, ADD COLUMN msg_id uuid;

-- Leaves an event for a room in the transaction of the caller: it is published once that commits, and never if it rolls
-- back. Returns its message id. `json` keeps the text of the payload as it is, escapes included, which `jsonb` does not.
CREATE FUNCTION publish(room text, event text, payload json, msg_id text DEFAULT NULL) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    -- The grammars, the limits and the reserved prefixes of the HTTP surface.
    room_names  CONSTANT text := '^[a-z][a-z0-9_-]{0,31}(:[A-Za-z0-9._~|@-]{1,128}){0,4}$';
    event_names CONSTANT text := '^[a-z][a-z0-9_.-]{0,63}$';
    reserved    CONSTANT text := '^(sb|turn|tool|run|presence)\.';
    most_bytes  CONSTANT integer := 61440;
    most_levels CONSTANT integer := 64;
    now_us      CONSTANT bigint := extract(epoch FROM clock_timestamp()) * 1000000;
    parts       CONSTANT text[] := string_to_array(room, ':');
    brackets    text;
    made        uuid;
BEGIN
    IF room IS NULL OR room COLLATE "C" !~ room_names
        OR parts[1] IN ('task', 'run')
        OR parts[1] = 'user' AND cardinality(parts) <> 2
        OR parts[1] = 'dm' AND (cardinality(parts) <> 3 OR parts[2] COLLATE "C" >= parts[3] COLLATE "C")
    THEN
        RAISE EXCEPTION 'switchboard.publish: "%" is not the name of a room', left(room, 128)
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Use the name of a room that was created, user:<id>, or dm:<a>:<b> with a before b.';
    END IF;
    IF parts[1] NOT IN ('user', 'dm') AND NOT EXISTS (SELECT FROM switchboard.rooms AS found WHERE found.name = room) THEN
        RAISE EXCEPTION 'switchboard.publish: there is no room "%"', left(room, 128)
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Create the room first.';
    END IF;
    IF event IS NULL OR event COLLATE "C" !~ event_names THEN
        RAISE EXCEPTION 'switchboard.publish: "%" is not the name of an event', left(event, 128)
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Event names match ' || event_names || '.';
    END IF;
    IF event ~ reserved THEN
        RAISE EXCEPTION 'switchboard.publish: only the server publishes "%"', event
            USING ERRCODE = 'insufficient_privilege',
                  HINT = 'The prefixes sb., turn., tool., run. and presence. are the server''s.';
    END IF;
    IF payload IS NULL THEN
        RAISE EXCEPTION 'switchboard.publish: the payload is missing'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Pass ''null'' for an event that carries nothing.';
    END IF;
    IF msg_id COLLATE "C" !~ '^[!-~]{1,200}$' THEN
        RAISE EXCEPTION 'switchboard.publish: the message id is not usable'
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Use 1 to 200 visible ASCII characters without spaces, or NULL for none.';
    END IF;
    IF octet_length(payload::text) > most_bytes THEN
        RAISE EXCEPTION 'switchboard.publish: the payload has % bytes and may have %',
            octet_length(payload::text), most_bytes
            USING ERRCODE = 'program_limit_exceeded', HINT = 'Store the data in a table and publish its key.';
    END IF;
    -- Without strings and what stands between brackets, each pass takes away the innermost level.
    brackets := regexp_replace(payload::text, '"(?:[^"\\]|\\.)*"|[^][{}"]+', '', 'g');
    brackets := translate(brackets, '{}', '[]');
    FOR level IN 1..most_levels LOOP
        EXIT WHEN brackets = '';
        brackets := replace(brackets, '[]', '');
    END LOOP;
    IF brackets <> '' THEN
        RAISE EXCEPTION 'switchboard.publish: the payload is nested deeper than % levels', most_levels
            USING ERRCODE = 'program_limit_exceeded', HINT = 'Publish less structure.';
    END IF;

    IF msg_id IS NULL THEN
        -- A UUIDv7 (RFC 9562), as switchboard.trigger makes it.
        made := encode(
            int8send(((now_us / 1000) << 16) | x'7000'::bigint | (now_us % 1000) * 4096 / 1000)
                || substring(uuid_send(gen_random_uuid()) FROM 9),
            'hex'
        )::uuid;
    END IF;
    INSERT INTO switchboard.outbox (kind, subject, event, input, dedupe_key, msg_id)
    VALUES ('publish', room, event, payload::text, msg_id, made);
    -- One signal for a transaction is enough.
    INSERT INTO switchboard.signals (kind, key)
    SELECT 'outbox_filled', 'outbox'
    WHERE NOT EXISTS (
        SELECT FROM switchboard.signals AS signal
        WHERE signal.xid = pg_current_xact_id() AND signal.kind = 'outbox_filled'
    );
    RETURN coalesce(msg_id, made::text);
END
$function$;

-- Whoever may call it is up to the owner of the database:
-- GRANT USAGE ON SCHEMA switchboard TO app;
-- GRANT EXECUTE ON FUNCTION switchboard.publish(text, text, json, text) TO app;
REVOKE ALL ON FUNCTION publish(text, text, json, text) FROM PUBLIC;
