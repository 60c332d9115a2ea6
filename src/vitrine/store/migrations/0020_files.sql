-- The file that the definition of a pipeline was applied from.

ALTER TABLE etl.etl_pipelines
    ADD COLUMN file_name text,
    ADD COLUMN file_applied_at timestamptz,
    ADD COLUMN file_digest bytea,
    ADD COLUMN file_differs boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN etl.etl_pipelines.file_name IS 'The file that the definition was applied from, without folders of a machine; NULL: none manages it';
COMMENT ON COLUMN etl.etl_pipelines.file_digest IS 'SHA-256 of the definition as it was applied';
COMMENT ON COLUMN etl.etl_pipelines.file_differs IS 'The definition was changed since, and is not the one that was applied';
