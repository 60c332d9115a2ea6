-- The store: pipelines, their steps, their state, their runs.

CREATE SEQUENCE etl.fencing_seq AS bigint;
COMMENT ON SEQUENCE etl.fencing_seq IS 'Lease tokens; global, so that delete and recreate never restarts them';

CREATE TABLE etl.etl_pipelines (
    id                  uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    name                text NOT NULL UNIQUE CHECK (name ~ '^[a-z][a-z0-9_]{0,62}$'),
    description         text NOT NULL DEFAULT '',
    type                text NOT NULL DEFAULT 'SQL' CHECK (type IN ('SQL', 'PYTHON')),
    source_type         text NOT NULL DEFAULT 'postgres' CHECK (source_type IN ('postgres')),
    source              text NOT NULL DEFAULT 'default',
    source_query        text,
    python_task         text,
    target_table        text NOT NULL,
    mode                text NOT NULL DEFAULT 'full' CHECK (mode IN ('full', 'incremental')),
    incremental_key     text,
    incremental_id_key  text,
    key_columns         text[] NOT NULL DEFAULT '{}',
    batch_size          integer NOT NULL DEFAULT 5000 CHECK (batch_size BETWEEN 1 AND 50000),
    enabled             boolean NOT NULL DEFAULT true,
    schedule_interval   text,
    next_due_at         timestamptz,
    options             jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(options) = 'object'),
    status              text NOT NULL DEFAULT 'IDLE'
                        CHECK (status IN ('IDLE', 'RUN_REQUESTED', 'RUNNING', 'PAUSE_REQUESTED', 'PAUSED', 'FAILED')),
    config_version      integer NOT NULL DEFAULT 1,
    request_id          uuid,
    requested_kind      text,
    requested_options   jsonb NOT NULL DEFAULT '{}',
    requested_trigger   text,
    requested_at        timestamptz,
    rerun               boolean NOT NULL DEFAULT false,
    rerun_request_id    uuid,
    attempt             integer NOT NULL DEFAULT 0 CHECK (attempt >= 0),
    next_attempt_at     timestamptz,
    lease_token         bigint,
    lease_owner         text,
    lease_expires_at    timestamptz,
    created_at          timestamptz NOT NULL DEFAULT now(),
    updated_at          timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT lease_shape CHECK (
        CASE WHEN status IN ('RUNNING', 'PAUSE_REQUESTED')
             THEN lease_token IS NOT NULL AND lease_owner IS NOT NULL AND lease_expires_at IS NOT NULL
             ELSE lease_token IS NULL AND lease_owner IS NULL AND lease_expires_at IS NULL
        END),
    CONSTRAINT request_shape CHECK (status <> 'RUN_REQUESTED' OR (request_id IS NOT NULL AND requested_at IS NOT NULL)),
    CONSTRAINT rerun_shape CHECK (rerun = (rerun_request_id IS NOT NULL)),
    CONSTRAINT cursor_shape CHECK (mode = 'full' OR incremental_key IS NOT NULL)
);
CREATE UNIQUE INDEX one_pipeline_per_target ON etl.etl_pipelines (target_table) WHERE enabled;
CREATE INDEX claimable ON etl.etl_pipelines (requested_at, id) WHERE status = 'RUN_REQUESTED' AND enabled;
CREATE INDEX leased ON etl.etl_pipelines (lease_expires_at) WHERE status IN ('RUNNING', 'PAUSE_REQUESTED');
CREATE INDEX scheduled ON etl.etl_pipelines (next_due_at) WHERE next_due_at IS NOT NULL AND enabled;

CREATE TABLE etl.etl_pipeline_tasks (
    id            uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    pipeline_id   uuid NOT NULL REFERENCES etl.etl_pipelines ON DELETE CASCADE,
    order_index   integer NOT NULL,
    task_type     text NOT NULL CHECK (task_type IN ('SQL', 'PYTHON')),
    body          text,
    source_table  text,
    target_table  text,
    options       jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(options) = 'object'),
    UNIQUE (pipeline_id, order_index)
);
COMMENT ON COLUMN etl.etl_pipeline_tasks.body IS 'SQL text, or the name of a registered Python transform';

CREATE TABLE etl.etl_state (
    pipeline_id            uuid PRIMARY KEY REFERENCES etl.etl_pipelines ON DELETE CASCADE,
    cursor                 text[],
    pending_cursor         text[],
    pending_since          timestamptz,
    last_processed_value   text GENERATED ALWAYS AS (cursor[1]) STORED,
    last_processed_id      text GENERATED ALWAYS AS (cursor[2]) STORED,
    cursor_fingerprint     text,
    generation             integer NOT NULL DEFAULT 0,
    generation_open        boolean NOT NULL DEFAULT false,
    generation_cursor      text[],
    generation_rows        bigint NOT NULL DEFAULT 0,
    generation_started_at  timestamptz,
    generation_fingerprint text,
    batch_seq              bigint NOT NULL DEFAULT 0,
    lease_token            bigint,
    updated_at             timestamptz NOT NULL DEFAULT now()
);
COMMENT ON COLUMN etl.etl_state.cursor IS 'Full precision, as printed under TimeZone=UTC, DateStyle=ISO';

CREATE TABLE etl.etl_runs (
    id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pipeline_id    uuid NOT NULL REFERENCES etl.etl_pipelines ON DELETE CASCADE,
    request_id     uuid,
    attempt        integer NOT NULL,
    trigger        text NOT NULL CHECK (trigger IN ('api', 'cli', 'schedule')),
    kind           text NOT NULL CHECK (kind IN ('incremental', 'full', 'backfill', 'reconcile', 'repair')),
    status         text NOT NULL DEFAULT 'RUNNING'
                   CHECK (status IN ('RUNNING', 'SUCCESS', 'FAILED', 'PAUSED', 'ABANDONED')),
    started_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    finished_at    timestamptz,
    rows_read      bigint NOT NULL DEFAULT 0,
    rows_written   bigint NOT NULL DEFAULT 0,
    rows_deleted   bigint NOT NULL DEFAULT 0,
    rows_rejected  bigint NOT NULL DEFAULT 0,
    batches        integer NOT NULL DEFAULT 0,
    rows_expected  bigint,
    error_code     text,
    error_message  text CHECK (length(error_message) <= 2000),
    config         jsonb NOT NULL,
    runner         text NOT NULL,
    lease_token    bigint NOT NULL,
    CONSTRAINT finished_shape CHECK ((status = 'RUNNING') = (finished_at IS NULL))
);
CREATE UNIQUE INDEX one_running_per_pipeline ON etl.etl_runs (pipeline_id) WHERE status = 'RUNNING';
CREATE INDEX runs_by_pipeline ON etl.etl_runs (pipeline_id, id DESC);
CREATE INDEX runs_by_request ON etl.etl_runs (request_id, id DESC);

CREATE TABLE etl.etl_runners (
    name        text PRIMARY KEY,
    started_at  timestamptz NOT NULL DEFAULT now(),
    seen_at     timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE etl.etl_runners IS 'Runner processes that are alive, for /health; not part of any decision';
