-- Chains: which pipelines a pipeline runs after.

CREATE TABLE etl.etl_chains (
    pipeline_id   uuid NOT NULL REFERENCES etl.etl_pipelines ON DELETE CASCADE,
    upstream_id   uuid NOT NULL REFERENCES etl.etl_pipelines ON DELETE CASCADE,
    succeeded_at  timestamptz,
    PRIMARY KEY (pipeline_id, upstream_id),
    CONSTRAINT not_itself CHECK (pipeline_id <> upstream_id)
);
CREATE INDEX chains_by_upstream ON etl.etl_chains (upstream_id);
COMMENT ON TABLE etl.etl_chains IS 'A pipeline runs once all its upstreams have succeeded: that is one wave';
COMMENT ON COLUMN etl.etl_chains.succeeded_at IS
    'The last success of the upstream; NULL: none since the pipeline was last started by a wave';

-- what may ask for a run is decided by the code
ALTER TABLE etl.etl_runs DROP CONSTRAINT etl_runs_trigger_check;
