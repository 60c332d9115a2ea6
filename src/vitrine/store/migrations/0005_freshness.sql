-- How fresh each mart is, and what is watched while it is kept so.

ALTER TABLE etl.etl_pipelines
    ADD COLUMN fresh_as_of timestamptz,
    ADD COLUMN heartbeat_at timestamptz;
COMMENT ON COLUMN etl.etl_pipelines.fresh_as_of IS
    'The mart shows every change that was committed before this time: when the read behind it began';
COMMENT ON COLUMN etl.etl_pipelines.heartbeat_at IS 'When the holder of the lease was last heard of';

ALTER TABLE etl.etl_state
    ADD COLUMN horizon_lag_seconds double precision,
    ADD COLUMN horizon_blocker text;
COMMENT ON COLUMN etl.etl_state.horizon_lag_seconds IS
    'How long the oldest transaction had been open that the last incremental run had to wait for; 0: none';

UPDATE etl.etl_pipelines p
   SET fresh_as_of = CASE WHEN r.kind = 'full' THEN least(s.generation_started_at, r.started_at) ELSE r.started_at END
  FROM (SELECT DISTINCT ON (pipeline_id) pipeline_id, kind, started_at FROM etl.etl_runs
         WHERE status = 'SUCCESS' ORDER BY pipeline_id, id DESC) AS r
  LEFT JOIN etl.etl_state s USING (pipeline_id)
 WHERE r.pipeline_id = p.id;
