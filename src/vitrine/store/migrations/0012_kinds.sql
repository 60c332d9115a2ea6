-- Backfills, comparisons as runs, and the last log lines of each run.

ALTER TABLE etl.etl_pipelines ADD COLUMN rerun_held boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN etl.etl_pipelines.rerun_held IS
    'The request that follows waits for a person: it does not start when the current one returns the pipeline to its status';

ALTER TABLE etl.etl_state
    ADD COLUMN backfill_key text,
    ADD COLUMN backfill_cursor text[];
COMMENT ON COLUMN etl.etl_state.backfill_key IS 'The request, and a hash of the work that it does';
COMMENT ON COLUMN etl.etl_state.backfill_cursor IS
    'The last row that this backfill has written; the checkpoint does not depend on it';

ALTER TABLE etl.etl_runs ADD COLUMN result jsonb;
COMMENT ON COLUMN etl.etl_runs.result IS 'What a reconcile has found; NULL: another kind, or no result yet';

CREATE TABLE etl.etl_run_logs (
    run_id      bigint PRIMARY KEY REFERENCES etl.etl_runs ON DELETE CASCADE,
    lines       jsonb NOT NULL,
    dropped     integer NOT NULL DEFAULT 0,
    written_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE etl.etl_run_logs IS 'The last log lines of each run, at most 64 KB; deleted with the run';
COMMENT ON COLUMN etl.etl_run_logs.dropped IS 'Earlier lines that are not kept';

CREATE INDEX open_rejects ON etl.etl_rejects (pipeline_id, id) WHERE closed_at IS NULL;
