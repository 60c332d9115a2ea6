-- Since when a pipeline has its status, and indexes for reads by request, status and error.

ALTER TABLE etl.etl_pipelines ADD COLUMN status_since timestamptz;
COMMENT ON COLUMN etl.etl_pipelines.status_since IS 'When the status last changed; NULL: before this was recorded';

CREATE INDEX pipelines_by_request ON etl.etl_pipelines (request_id) WHERE request_id IS NOT NULL;
CREATE INDEX pipelines_by_rerun ON etl.etl_pipelines (rerun_request_id) WHERE rerun_request_id IS NOT NULL;

-- what an operator looks for among hundreds of pipelines
CREATE INDEX pipelines_by_status ON etl.etl_pipelines (status, name);
CREATE INDEX pipelines_with_error ON etl.etl_pipelines (name) WHERE last_error_code IS NOT NULL;
