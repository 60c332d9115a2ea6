-- Due times on the runs they caused, another pace for a run under way, history by age.

ALTER TABLE etl.etl_pipelines
    ADD COLUMN requested_due_at timestamptz,
    ADD COLUMN reload_version integer;
COMMENT ON COLUMN etl.etl_pipelines.requested_due_at IS 'The due time that made the request; NULL where a person did';
COMMENT ON COLUMN etl.etl_pipelines.reload_version IS
    'config_version whose pace the run under way shall take; NULL: the one it captured';

ALTER TABLE etl.etl_runs ADD COLUMN due_at timestamptz;
COMMENT ON COLUMN etl.etl_runs.due_at IS 'The due time it runs for; every attempt of one request has the same';
CREATE INDEX runs_by_age ON etl.etl_runs (finished_at) WHERE finished_at IS NOT NULL;
