-- Rows that did not fit, and what a run tells about its pace.

CREATE TABLE etl.etl_rejects (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pipeline_id  uuid NOT NULL REFERENCES etl.etl_pipelines ON DELETE CASCADE,
    run_id       bigint NOT NULL,
    key          text NOT NULL,
    column_name  text,
    sqlstate     text NOT NULL,
    reason       text NOT NULL,
    row          jsonb NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now(),
    closed_at    timestamptz
);
CREATE UNIQUE INDEX one_open_reject_per_key ON etl.etl_rejects (pipeline_id, key) WHERE closed_at IS NULL;
COMMENT ON COLUMN etl.etl_rejects.closed_at IS 'When a newer version of the row was written';

ALTER TABLE etl.etl_runs
    ADD COLUMN lane text CHECK (lane IN ('copy', 'rows', 'frames')),
    ADD COLUMN slowest_batch_seconds real;
ALTER TABLE etl.etl_state ADD COLUMN generation_horizon text;
COMMENT ON COLUMN etl.etl_state.generation_horizon IS 'Where a full load with a cursor column catches up from';
