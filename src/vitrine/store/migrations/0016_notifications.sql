-- Messages about pipelines: each is stored in the transaction of its event and sent later.

ALTER TABLE etl.etl_pipelines
    ADD COLUMN alerts text[] NOT NULL DEFAULT '{}',
    ADD COLUMN rejects_noted bigint NOT NULL DEFAULT 0;
COMMENT ON COLUMN etl.etl_pipelines.alerts IS 'Conditions that a message has reported and none has ended yet: failure, stale';
COMMENT ON COLUMN etl.etl_pipelines.rejects_noted IS 'Rows in quarantine when that was last compared: more of them are reported';

CREATE TABLE etl.etl_notifications (
    number           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id               uuid NOT NULL DEFAULT gen_random_uuid() UNIQUE,
    event            text NOT NULL,
    pipeline_id      uuid NOT NULL,
    pipeline         text NOT NULL,
    details          jsonb NOT NULL DEFAULT '{}',
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    attempts         integer NOT NULL DEFAULT 0,
    next_attempt_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    sent_at          timestamptz,
    last_error       text
);
CREATE INDEX unsent_notifications ON etl.etl_notifications (next_attempt_at) WHERE sent_at IS NULL;
CREATE INDEX notifications_by_age ON etl.etl_notifications (created_at);
COMMENT ON TABLE etl.etl_notifications IS 'Messages for the webhook; deleted after a week';
COMMENT ON COLUMN etl.etl_notifications.pipeline_id IS 'No foreign key: the message outlives its pipeline';
COMMENT ON COLUMN etl.etl_notifications.details IS 'Codes and counts; no values of rows';
