-- Room for sources and sinks of any kind: the store names none of them.

ALTER TABLE etl.etl_pipelines
    DROP CONSTRAINT etl_pipelines_source_type_check,
    ADD COLUMN batch_size_exact boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN etl.etl_pipelines.batch_size_exact IS 'false: a batch_size of 5000 means auto';

ALTER TABLE etl.etl_runs DROP CONSTRAINT etl_runs_lane_check;

ALTER TABLE etl.etl_state
    ADD COLUMN generation_position text[],
    ADD COLUMN target_identity text,
    ADD COLUMN sink_facts jsonb NOT NULL DEFAULT '{}' CHECK (length(sink_facts::text) <= 8192);
COMMENT ON COLUMN etl.etl_state.generation_position IS 'What becomes the checkpoint once the load is published';
COMMENT ON COLUMN etl.etl_state.target_identity IS 'Changes when the target is recreated; NULL: not known yet';
COMMENT ON COLUMN etl.etl_state.sink_facts IS 'What the sink keeps in step with the checkpoint; opaque to the store';

ALTER TABLE etl.etl_rejects ADD COLUMN code text;
COMMENT ON COLUMN etl.etl_rejects.code IS 'Why the target refused the row, in its own codes; sqlstate holds the same';

CREATE TABLE etl.etl_installation (
    single  boolean PRIMARY KEY DEFAULT true CHECK (single),
    id      uuid NOT NULL DEFAULT gen_random_uuid()
);
COMMENT ON TABLE etl.etl_installation IS 'One row: the id with which sinks mark what they create';
INSERT INTO etl.etl_installation DEFAULT VALUES;
