"""A store with many pipelines and runs, for reads of the API: nothing of it is due or requested."""

from typing import Any

import psycopg

PIPELINES, RUNS = 1_000, 100_000


def fill(connection: psycopg.Connection[Any], pipelines: int = PIPELINES, runs: int = RUNS) -> None:
    """Pipelines p0000, p0001 …: most are idle, some failed, a tenth has a cron line; all have equally many runs."""
    connection.execute(
        """INSERT INTO etl.etl_pipelines (name, source_query, target_table, key_columns, tags, owner, schedule_interval,
               next_due_at, fresh_as_of, status, last_error_code, last_error_message, last_error_at)
           SELECT 'p' || lpad(n::text, 4, '0'), 'SELECT id, name FROM content.genre', 'analytics.t' || n, '{id}',
                  ARRAY['team-' || n %% 20], 'owner-' || n %% 20,
                  CASE WHEN n %% 10 = 0 THEN '*/5 * * * *' WHEN n %% 10 < 6 THEN '5m' END,
                  CASE WHEN n %% 10 < 6 THEN now() + interval '1 day' END, now() - n * interval '1 second',
                  CASE WHEN n %% 50 = 0 THEN 'FAILED' ELSE 'IDLE' END, CASE WHEN n %% 50 = 0 THEN 'CONFIG' END,
                  'it failed', CASE WHEN n %% 50 = 0 THEN now() END
             FROM generate_series(0, %(pipelines)s - 1) AS n""",
        {"pipelines": pipelines},
    )
    connection.execute(
        """INSERT INTO etl.etl_runs (pipeline_id, request_id, attempt, trigger, kind, status, started_at, finished_at,
               rows_read, config, runner, lease_token)
           SELECT p.id, ('00000000-0000-0000-0000-' || lpad(n::text, 12, '0'))::uuid, 1, 'api', 'full',
                  CASE WHEN n %% 10 = 0 THEN 'FAILED' ELSE 'SUCCESS' END, now() - n * interval '1 minute',
                  now() - n * interval '1 minute' + (100 + n %% 977 * 13) * interval '1 millisecond',
                  n %% 5000, '{}', 'worker-1', n
             FROM generate_series(1, %(runs)s) AS n
             JOIN (SELECT id, row_number() OVER (ORDER BY name) AS number FROM etl.etl_pipelines) AS p
               ON p.number = n %% %(pipelines)s + 1""",
        {"pipelines": pipelines, "runs": runs},
    )
    connection.execute("ANALYZE")
