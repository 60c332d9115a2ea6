-- Checks of a pipeline, and what they have found in each run.

ALTER TABLE etl.etl_pipelines ADD COLUMN checks jsonb NOT NULL DEFAULT '[]';
COMMENT ON COLUMN etl.etl_pipelines.checks IS 'Rules that rows must obey before readers see them';

ALTER TABLE etl.etl_runs ADD COLUMN checks jsonb;
COMMENT ON COLUMN etl.etl_runs.checks IS 'What the checks have found in the rows of the run; NULL: no row was checked';
