-- Sessions of the console.

CREATE TABLE etl.etl_sessions (
    hash        bytea PRIMARY KEY CHECK (length(hash) = 32),
    token_id    uuid NOT NULL REFERENCES etl.etl_tokens ON DELETE CASCADE,
    created_at  timestamptz NOT NULL DEFAULT now(),
    seen_at     timestamptz NOT NULL DEFAULT now(),
    expires_at  timestamptz NOT NULL
);
CREATE INDEX sessions_by_token ON etl.etl_sessions (token_id);
CREATE INDEX sessions_by_expiry ON etl.etl_sessions (expires_at);
COMMENT ON TABLE etl.etl_sessions IS 'Browsers that are logged in to the console; each has the rights of its token, while that is valid';
COMMENT ON COLUMN etl.etl_sessions.hash IS 'SHA-256 of the session id in the cookie; the id itself is stored nowhere';
COMMENT ON COLUMN etl.etl_sessions.seen_at IS 'To the minute';
