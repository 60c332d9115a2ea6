-- What a run has achieved beside its counts: rows left out because their key came again (on_duplicate_key), and whether a
-- repetition would find the checkpoint or the mart elsewhere.

ALTER TABLE etl.etl_runs
    ADD COLUMN rows_repeated bigint NOT NULL DEFAULT 0,
    ADD COLUMN moved boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN etl.etl_runs.moved IS 'Something was committed that the next run does not do again: it got on';
