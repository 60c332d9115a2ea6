-- Scheduled runs that are postponed, and the last error of a pipeline.

ALTER TABLE etl.etl_pipelines
    ADD COLUMN postponed integer NOT NULL DEFAULT 0,
    ADD COLUMN regular_due_at timestamptz,
    ADD COLUMN last_error_code text,
    ADD COLUMN last_error_message text,
    ADD COLUMN last_error_at timestamptz;
COMMENT ON COLUMN etl.etl_pipelines.postponed IS 'How many scheduled runs in a row were postponed; 0 after a success';
COMMENT ON COLUMN etl.etl_pipelines.regular_due_at IS
    'While the run is postponed: the due time by the schedule, which next_due_at replaces; otherwise NULL';
COMMENT ON COLUMN etl.etl_pipelines.last_error_code IS 'Why the last run failed; NULL: it was a success';

UPDATE etl.etl_pipelines p
   SET last_error_code = r.error_code, last_error_message = r.error_message, last_error_at = r.finished_at
  FROM etl.etl_runs r
 WHERE p.status = 'FAILED' AND r.error_code IS NOT NULL
   AND r.id = (SELECT max(n.id) FROM etl.etl_runs n WHERE n.pipeline_id = p.id);
