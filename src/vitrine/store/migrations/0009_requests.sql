-- What a request asks for, and the generations that a rollback can restore.

ALTER TABLE etl.etl_pipelines
    ADD COLUMN rerun_kind text,
    ADD COLUMN rerun_options jsonb,
    ADD COLUMN returns_to text;
COMMENT ON COLUMN etl.etl_pipelines.requested_kind IS 'What the request asks for; NULL: run';
COMMENT ON COLUMN etl.etl_pipelines.rerun_kind IS 'The same for the request that follows';
COMMENT ON COLUMN etl.etl_pipelines.returns_to IS
    'The status before the request: a request that finds nothing to do returns the pipeline to it';

-- a rerun that is waiting now was stored with the options of the request before it
UPDATE etl.etl_pipelines SET rerun_options = requested_options WHERE rerun;

-- the kind of a request, or the mode of an ordinary run; which kinds there are is decided by the code
ALTER TABLE etl.etl_runs DROP CONSTRAINT etl_runs_kind_check;

CREATE TABLE etl.etl_generations (
    pipeline_id         uuid NOT NULL REFERENCES etl.etl_pipelines ON DELETE CASCADE,
    generation          integer NOT NULL,
    replaces            integer,
    published_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    replaced_at         timestamptz,
    restored_by         uuid,
    cursor              text[],
    pending_cursor      text[],
    pending_since       timestamptz,
    cursor_fingerprint  text,
    fresh_as_of         timestamptz,
    target_identity     text,
    sink_facts          jsonb NOT NULL DEFAULT '{}',
    rows                bigint NOT NULL,
    fingerprint         text NOT NULL,
    PRIMARY KEY (pipeline_id, generation)
);
CREATE UNIQUE INDEX one_live_generation ON etl.etl_generations (pipeline_id) WHERE replaced_at IS NULL;
COMMENT ON TABLE etl.etl_generations IS
    'Published loads, each with the state of the reads as it was when the load was last live';
COMMENT ON COLUMN etl.etl_generations.replaces IS 'The generation that was live before it: where a rollback leads';
COMMENT ON COLUMN etl.etl_generations.replaced_at IS 'NULL: it is live';
COMMENT ON COLUMN etl.etl_generations.restored_by IS 'The request that made it live again; such a request is done';
