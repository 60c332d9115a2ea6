-- Access tokens, and the audit log.

CREATE TABLE etl.etl_tokens (
    id            uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    name          text NOT NULL CHECK (name ~ '^[a-z][a-z0-9_.-]{0,62}$'),
    role          text NOT NULL CHECK (role IN ('viewer', 'operator', 'admin')),
    hash          bytea NOT NULL UNIQUE CHECK (length(hash) = 32),
    prefix        text NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT now(),
    created_by    text NOT NULL,
    expires_at    timestamptz NOT NULL,
    revoked_at    timestamptz,
    last_used_at  timestamptz
);
CREATE UNIQUE INDEX one_token_per_name ON etl.etl_tokens (name) WHERE revoked_at IS NULL;
COMMENT ON TABLE etl.etl_tokens IS 'Access tokens of the API. While the table is empty, the API serves loopback without tokens';
COMMENT ON COLUMN etl.etl_tokens.hash IS 'SHA-256 of the 32 random bytes of the token; the token itself is stored nowhere';
COMMENT ON COLUMN etl.etl_tokens.prefix IS 'The first characters of the token, to recognise it';
COMMENT ON COLUMN etl.etl_tokens.last_used_at IS 'To the minute; null: never used';

CREATE TABLE etl.etl_audit (
    id           bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    at           timestamptz NOT NULL DEFAULT now(),
    actor        text NOT NULL,
    role         text NOT NULL,
    via          text NOT NULL,
    address      text,
    operation    text NOT NULL,
    pipeline     text,
    pipeline_id  uuid,
    before       jsonb,
    after        jsonb
);
CREATE INDEX audit_by_pipeline ON etl.etl_audit (pipeline, id);
CREATE INDEX audit_by_time ON etl.etl_audit (at);
COMMENT ON TABLE etl.etl_audit IS 'Every change that a person or a program asked for, written in the transaction of the change; append-only';
COMMENT ON COLUMN etl.etl_audit.actor IS 'The name of the token, the user of the operating system, or anonymous';
COMMENT ON COLUMN etl.etl_audit.address IS 'The client of the API; null: the command line';
COMMENT ON COLUMN etl.etl_audit.pipeline_id IS 'No foreign key: the row outlives its pipeline';

-- For every role, the owner included, and ALWAYS: session_replication_role does not switch it off
CREATE FUNCTION etl.refuse_audit_change() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'etl.etl_audit is append-only: % is refused', tg_op USING ERRCODE = 'insufficient_privilege';
END $$;
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON etl.etl_audit
    FOR EACH STATEMENT EXECUTE FUNCTION etl.refuse_audit_change();
-- guarantee: H17
ALTER TABLE etl.etl_audit ENABLE ALWAYS TRIGGER append_only;
