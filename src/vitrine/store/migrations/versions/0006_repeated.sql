-- Rows that were left out because their key came again (on_duplicate_key).

ALTER TABLE etl.etl_runs ADD COLUMN rows_repeated bigint NOT NULL DEFAULT 0;
