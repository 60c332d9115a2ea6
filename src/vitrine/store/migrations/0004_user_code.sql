-- Which run was in user code when its process died.

ALTER TABLE etl.etl_runs ADD COLUMN in_user_code boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN etl.etl_runs.in_user_code IS 'A transform or Python reader has been entered; a suspect if the process dies';
CREATE INDEX runs_in_user_code ON etl.etl_runs (runner, finished_at) WHERE in_user_code;
