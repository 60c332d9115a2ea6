-- Accounts that log in, as members of the roles that `vitrine migrate --roles` has created. The passwords are read from
-- the environment of psql. Safe to repeat: an account that exists gets the present password.
\set ON_ERROR_STOP on
SET client_min_messages = warning;
\getenv reader_password ETL_READER_PASSWORD
\getenv runner_password ETL_RUNNER_PASSWORD
\getenv api_password ETL_API_PASSWORD

SELECT format('CREATE ROLE %I LOGIN', login)
  FROM unnest(ARRAY['etl_reader', 'etl_runner', 'etl_api']) AS login
 WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = login)
\gexec

ALTER ROLE etl_reader PASSWORD :'reader_password';
ALTER ROLE etl_runner PASSWORD :'runner_password';
ALTER ROLE etl_api PASSWORD :'api_password';
-- no operator or function that others create in the database runs with their rights
ALTER ROLE etl_reader SET search_path = pg_catalog;
ALTER ROLE etl_runner SET search_path = pg_catalog;
ALTER ROLE etl_api SET search_path = pg_catalog;
GRANT vitrine_reader TO etl_reader;
GRANT vitrine_runner TO etl_runner;
GRANT vitrine_api TO etl_api;

-- trace, plan and quick reconcile of API and console read the marts: docs/accounts.md
GRANT SELECT ON ALL TABLES IN SCHEMA analytics TO vitrine_api;
ALTER DEFAULT PRIVILEGES FOR ROLE vitrine_runner IN SCHEMA analytics GRANT SELECT ON TABLES TO vitrine_api;
