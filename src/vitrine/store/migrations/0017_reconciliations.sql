-- Reports of deep reconciles, and what they say about each pipeline.

CREATE TABLE etl.etl_reconciliations (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pipeline_id     uuid NOT NULL REFERENCES etl.etl_pipelines ON DELETE CASCADE,
    run_id          bigint REFERENCES etl.etl_runs ON DELETE SET NULL,
    started_at      timestamptz NOT NULL,
    finished_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    verdict         text NOT NULL,
    verified_until  timestamptz,
    missing         bigint NOT NULL,
    extra           bigint NOT NULL,
    different       bigint NOT NULL,
    waiting         bigint NOT NULL,
    repaired        bigint,
    report          jsonb NOT NULL
);
COMMENT ON TABLE etl.etl_reconciliations IS 'The newest reports of deep reconciles; each names a limited number of keys';
COMMENT ON COLUMN etl.etl_reconciliations.run_id IS 'NULL: the run was deleted from the history';
COMMENT ON COLUMN etl.etl_reconciliations.verified_until IS 'The mart equals its source as of this time; NULL: it does not';
COMMENT ON COLUMN etl.etl_reconciliations.waiting IS 'Differing keys that are not reported, because the next run reads them';
COMMENT ON COLUMN etl.etl_reconciliations.repaired IS 'Keys that a repair has corrected; NULL: none was asked for';

CREATE INDEX reconciliations_by_pipeline ON etl.etl_reconciliations (pipeline_id, id);
CREATE INDEX reconciliations_by_run ON etl.etl_reconciliations (run_id);

ALTER TABLE etl.etl_pipelines
    ADD COLUMN verified_until timestamptz,
    ADD COLUMN verdict text,
    ADD COLUMN verdict_at timestamptz,
    ADD COLUMN next_reconcile_at timestamptz;
COMMENT ON COLUMN etl.etl_pipelines.verified_until IS 'The mart was proven equal to its source as of this time';
COMMENT ON COLUMN etl.etl_pipelines.verdict IS 'Of the last deep reconcile: equal or different';
COMMENT ON COLUMN etl.etl_pipelines.next_reconcile_at IS
    'When reconcile_interval requests the next deep reconcile; NULL: as soon as the pipeline is IDLE';

CREATE INDEX pipelines_to_reconcile ON etl.etl_pipelines (next_reconcile_at)
 WHERE options ->> 'reconcile_interval' IS NOT NULL;

ALTER TABLE etl.etl_state ADD COLUMN deletes_checked_at timestamptz;
COMMENT ON COLUMN etl.etl_state.deletes_checked_at IS 'When delete_mode reconcile_keys last compared the keys of source and mart';
