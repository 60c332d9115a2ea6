-- Tags and the owner of a pipeline.

ALTER TABLE etl.etl_pipelines
    ADD COLUMN tags text[] NOT NULL DEFAULT '{}',
    ADD COLUMN owner text NOT NULL DEFAULT '';
COMMENT ON COLUMN etl.etl_pipelines.tags IS 'Names that group pipelines';
COMMENT ON COLUMN etl.etl_pipelines.owner IS 'The person or team that is responsible; for people';
