-- A queue as pgmq makes it: `read` hides messages for a while, `delete` removes them.
CREATE TABLE pgmq_q (
    msg_id      bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    read_ct     integer NOT NULL DEFAULT 0,
    enqueued_at timestamptz NOT NULL DEFAULT now(),
    vt          timestamptz NOT NULL,
    message     jsonb
);
CREATE INDEX pgmq_q_vt ON pgmq_q (vt);
CREATE FUNCTION pgmq_read(visible integer, quantity integer) RETURNS SETOF pgmq_q LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
    WITH cte AS (
        SELECT msg_id FROM pgmq_q WHERE vt <= clock_timestamp() ORDER BY msg_id LIMIT quantity FOR UPDATE SKIP LOCKED
    )
    UPDATE pgmq_q m SET vt = clock_timestamp() + make_interval(secs => visible), read_ct = read_ct + 1
    FROM cte WHERE m.msg_id = cte.msg_id RETURNING m.*;
END $$;
CREATE FUNCTION pgmq_delete(ids bigint[]) RETURNS SETOF bigint LANGUAGE sql AS $$
    DELETE FROM pgmq_q WHERE msg_id = ANY(ids) RETURNING msg_id
$$;
