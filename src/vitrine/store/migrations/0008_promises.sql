-- What a request promises, and whose target it is while a run writes.

ALTER TABLE etl.etl_pipelines ADD COLUMN promised_at timestamptz;
COMMENT ON COLUMN etl.etl_pipelines.promised_at IS
    'When the waiting request was last repeated: its success includes every change committed before; see requested_at';

ALTER TABLE etl.etl_runs ADD COLUMN promised_at timestamptz;
COMMENT ON COLUMN etl.etl_runs.promised_at IS
    'The success of its request includes every change committed before this time; NULL: run by an earlier release';

DO $$
DECLARE
    holder text;
BEGIN
    SELECT p.name INTO holder FROM etl.etl_pipelines p JOIN etl.etl_pipelines q USING (target_table)
     WHERE NOT p.enabled AND p.lease_token IS NOT NULL AND p.id <> q.id AND (q.enabled OR q.lease_token IS NOT NULL);
    IF FOUND THEN
        RAISE EXCEPTION 'pipeline % is disabled but still runs, and another pipeline has its target; wait for the end of'
            ' the run, then migrate again', holder;
    END IF;
END $$;
DROP INDEX etl.one_pipeline_per_target;
CREATE UNIQUE INDEX one_pipeline_per_target ON etl.etl_pipelines (target_table)
    -- guarantee: J11
    WHERE enabled OR lease_token IS NOT NULL;
