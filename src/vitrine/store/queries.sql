-- Statements on the store's own tables, each with a name and a sentence. All times come from the database's clock.
-- SQL that several statements share is a fragment; a comment line `include NAME` is replaced by its text.

-- fragment fence --
-- The row of the pipeline while the lease is ours, locked until the transaction ends: no other runner can take it over
held AS (
    -- guarantee: A7
    SELECT status, reload_version FROM etl.etl_pipelines WHERE id = %(id)s AND lease_token = %(token)s FOR SHARE
)

-- fragment parts --
-- Select list: what other tables have of the definition of pipeline p: its steps as JSON, in order, and the names of the
-- pipelines that it runs after
(SELECT coalesce(jsonb_agg(to_jsonb(t) - 'id' - 'pipeline_id' ORDER BY t.order_index), '[]')
   FROM etl.etl_pipeline_tasks t WHERE t.pipeline_id = p.id) AS tasks,
ARRAY(SELECT u.name FROM etl.etl_chains c JOIN etl.etl_pipelines u ON u.id = c.upstream_id
       WHERE c.pipeline_id = p.id ORDER BY u.name) AS after

-- fragment elapsed --
-- Select list: the seconds that a run has taken, until now or until its end
extract(epoch FROM coalesce(finished_at, clock_timestamp()) - started_at)::float8 AS elapsed

-- fragment promise --
-- The request of pipeline p succeeds only when every change that was committed before this time is in the mart
greatest(p.requested_at, p.promised_at)

-- fragment tag --
-- The name of this installation in the names of its sessions. A copy of the database has the same installation id, so the
-- name of the database is a part of it
-- guarantee: J26
(SELECT left(md5(i.id::text || current_database()), 12) FROM etl.etl_installation i)

-- fragment move --
-- The only UPDATE that sets the status of a pipeline, to be continued with the other columns that change, and closed by
-- `guard`. The statement provides `chosen`: which rows, locked, and which event happens to each
UPDATE etl.etl_pipelines p
   SET status = step.new, updated_at = now(),
       status_since = CASE WHEN p.status = step.new THEN p.status_since ELSE now() END,

-- fragment guard --
-- Only a step of the table in status.py is applied, and only to a row that still has the status it was chosen with.
-- `rerun` decides only for `finish`, `postpone` and `return`: one that leads back to the queue starts the rerun. The table is a JSON object
-- and not a relation: statements are planned at each execution, and a join with it makes a claim a quarter slower
  FROM chosen
 CROSS JOIN LATERAL (
       SELECT new, new = 'RUN_REQUESTED' AND (chosen.event IN ('finish', 'postpone') OR chosen.event LIKE 'return%%')
              AS starts_rerun
         FROM (SELECT %(steps)s::jsonb -> chosen.event -> chosen.status ->> chosen.rerun::text AS new) AS found) AS step
 WHERE p.id = chosen.id AND p.status = chosen.status AND step.new IS NOT NULL

-- fragment requests --
-- Assignments: the requests of pipeline p after the end of a run. `chosen` says whether its request has ended; a request that
-- follows another one starts from IDLE, unless the other one has returned the pipeline to its status
request_id = CASE WHEN step.starts_rerun THEN p.rerun_request_id
                  WHEN chosen.ends_request THEN NULL ELSE p.request_id END,
requested_kind = CASE WHEN step.starts_rerun THEN p.rerun_kind
                      WHEN chosen.ends_request THEN NULL ELSE p.requested_kind END,
requested_options = CASE WHEN step.starts_rerun THEN coalesce(p.rerun_options, '{}')
                         WHEN chosen.ends_request THEN '{}' ELSE p.requested_options END,
requested_at = CASE WHEN step.starts_rerun THEN now() ELSE p.requested_at END,
requested_trigger = CASE WHEN step.starts_rerun THEN 'api' ELSE p.requested_trigger END,
requested_due_at = CASE WHEN chosen.ends_request THEN NULL ELSE p.requested_due_at END,
returns_to = CASE WHEN step.starts_rerun AND chosen.event NOT LIKE 'return%%' THEN 'IDLE' ELSE p.returns_to END,
rerun = p.rerun AND NOT step.starts_rerun,
rerun_held = p.rerun_held AND NOT step.starts_rerun,
rerun_request_id = CASE WHEN NOT step.starts_rerun THEN p.rerun_request_id END,
rerun_kind = CASE WHEN NOT step.starts_rerun THEN p.rerun_kind END,
rerun_options = CASE WHEN NOT step.starts_rerun THEN p.rerun_options END

-- fragment definition --
-- Assignments: the definition of pipeline p. A pipeline with another schedule, or enabled again, gets a new due time. Under
-- another name it is not the one that its file defines
name = %(name)s, description = %(description)s, owner = %(owner)s, tags = %(tags)s, type = %(type)s, source_type = %(source_type)s,
source = %(source)s, source_query = %(source_query)s, python_task = %(python_task)s,
target_table = %(target_table)s, mode = %(mode)s, incremental_key = %(incremental_key)s,
incremental_id_key = %(incremental_id_key)s, key_columns = %(key_columns)s, batch_size = %(batch_size)s,
batch_size_exact = %(batch_size_exact)s, enabled = %(enabled)s, checks = %(checks)s, options = %(options)s,
schedule_interval = %(schedule_interval)s,
next_due_at = CASE WHEN (p.enabled, p.schedule_interval) IS DISTINCT FROM (%(enabled)s, %(schedule_interval)s::text)
                   THEN %(next_due_at)s ELSE p.next_due_at END,
regular_due_at = CASE WHEN (p.enabled, p.schedule_interval) IS NOT DISTINCT FROM (%(enabled)s, %(schedule_interval)s::text)
                      THEN p.regular_due_at END,
fresh_as_of = CASE WHEN p.target_table = %(target_table)s THEN p.fresh_as_of END,
verified_until = CASE WHEN p.target_table = %(target_table)s THEN p.verified_until END,
verdict = CASE WHEN p.target_table = %(target_table)s THEN p.verdict END,
verdict_at = CASE WHEN p.target_table = %(target_table)s THEN p.verdict_at END,
next_reconcile_at = CASE WHEN p.options ->> 'reconcile_interval' IS NOT DISTINCT FROM %(options)s::jsonb ->> 'reconcile_interval'
                         THEN p.next_reconcile_at END,
file_name = CASE WHEN p.name = %(name)s THEN p.file_name END,
file_applied_at = CASE WHEN p.name = %(name)s THEN p.file_applied_at END,
file_digest = CASE WHEN p.name = %(name)s THEN p.file_digest END,
-- guarantee: D26
file_differs = coalesce(p.name = %(name)s AND p.file_digest <> %(digest)s, false),
config_version = p.config_version + 1

-- fragment reconcile_due --
-- Condition: a pipeline is IDLE, has a mart, and its `reconcile_interval` has passed
options ->> 'reconcile_interval' IS NOT NULL AND options ->> 'reconcile_interval' ~ '^[0-9.]+[smhd]$'
   AND enabled AND status = 'IDLE' AND fresh_as_of IS NOT NULL
   AND (next_reconcile_at IS NULL OR next_reconcile_at <= now())

-- fragment lease_expired --
-- Condition: the lease of pipeline p has expired
p.status IN ('RUNNING', 'PAUSE_REQUESTED') AND p.lease_expires_at < clock_timestamp()

-- fragment stale --
-- Condition: the mart of pipeline p is older than its option `freshness` allows or, without one, its schedule. The due times
-- of a cron line are not known here, so that the caller gives the ids of those that are stale
(p.enabled AND CASE WHEN p.options ->> 'freshness' ~ '^[0-9.]+[smhd]$'
                    THEN now() > coalesce(p.fresh_as_of, p.created_at) + (p.options ->> 'freshness')::interval
                    WHEN p.schedule_interval ~ '^[0-9]+[smhd]$'
                    THEN now() > coalesce(p.fresh_as_of, p.created_at) + 2 * p.schedule_interval::interval
                    ELSE p.id = ANY (%(stale_crons)s::uuid[]) END)

-- fragment selection --
-- Condition: pipeline p has what the filters ask for; NULL: any
(%(statuses)s::text[] IS NULL OR p.status = ANY (%(statuses)s))
   AND (%(target)s::text IS NULL OR p.target_table = %(target)s)
   AND (%(target_prefix)s::text IS NULL OR starts_with(p.target_table, %(target_prefix)s))
   AND (%(enabled)s::boolean IS NULL OR p.enabled = %(enabled)s)
   AND (%(failed)s::boolean IS NULL OR (p.last_error_code IS NOT NULL) = %(failed)s)
   AND (%(error)s::text IS NULL OR p.last_error_code = %(error)s)
   AND (%(tag)s::text IS NULL OR %(tag)s = ANY (p.tags))
   AND (%(owner)s::text IS NULL OR p.owner = %(owner)s)
   AND (%(search)s::text IS NULL
        OR strpos(lower(concat_ws(' ', p.name, p.target_table, p.owner, p.description)), %(search)s) > 0)
   AND (%(stale)s::boolean IS NULL OR %(stale)s =
        -- include stale
       )

-- get_pipeline --
-- One pipeline by id or by name
SELECT p.*, clock_timestamp() AS read_at,
       -- include parts
  FROM etl.etl_pipelines p
 WHERE p.id = %(id)s::uuid OR p.name = %(name)s;

-- lock_pipeline --
-- The same, locked until the transaction ends: no other session changes, claims or deletes it
SELECT p.*, clock_timestamp() AS read_at,
       -- include parts
  FROM etl.etl_pipelines p
 WHERE p.id = %(id)s::uuid OR p.name = %(name)s
   FOR UPDATE OF p;

-- lock_row --
-- Locks a pipeline without reading its definition; no row if it was deleted
SELECT id FROM etl.etl_pipelines WHERE id = %(id)s FOR UPDATE;

-- lock_rows --
-- Locks several pipelines, in the order of their ids
SELECT id FROM etl.etl_pipelines WHERE name = ANY (%(names)s::text[]) ORDER BY id FOR UPDATE;

-- list_pipelines --
-- Every pipeline in the order of their names
SELECT p.*, clock_timestamp() AS read_at,
       -- include parts
  FROM etl.etl_pipelines p
 ORDER BY p.name;

-- list_selected --
-- One page of the selected pipelines in the order of their names, after the given name, each with its newest run
SELECT p.*, clock_timestamp() AS read_at,
       -- include parts
     , r.id AS run_id, r.kind AS run_kind, r.status AS run_status, r.started_at AS run_started_at,
       r.finished_at AS run_finished_at, r.rows_read AS run_rows_read
  FROM etl.etl_pipelines p
  LEFT JOIN LATERAL (SELECT id, kind, status, started_at, finished_at, rows_read
                       FROM etl.etl_runs WHERE pipeline_id = p.id ORDER BY id DESC LIMIT 1) r ON true
 -- guarantee: H21
 WHERE p.name > %(after)s
   AND
   -- include selection
 ORDER BY p.name
 LIMIT %(limit)s;

-- select_pipelines --
-- Ids and names of the selected pipelines in the order of their names, after the given name
SELECT p.id, p.name
  FROM etl.etl_pipelines p
 WHERE p.name > %(after)s
   AND
   -- include selection
 ORDER BY p.name
 LIMIT %(limit)s;

-- list_crons --
-- The enabled pipelines that a cron line decides about, and how fresh their marts are
SELECT id, schedule_interval, coalesce(fresh_as_of, created_at) AS fresh_as_of, clock_timestamp() AS now
  FROM etl.etl_pipelines
 WHERE enabled AND next_due_at IS NOT NULL AND schedule_interval !~ '^[0-9]+[smhd]$' AND options -> 'freshness' IS NULL;

-- insert_pipeline --
-- Inserts a pipeline; its status is IDLE
INSERT INTO etl.etl_pipelines (id, name, description, owner, tags, type, source_type, source, source_query, python_task,
       target_table, mode, incremental_key, incremental_id_key, key_columns, batch_size, batch_size_exact, enabled,
       schedule_interval,
       next_due_at, checks, options)
VALUES (coalesce(%(id)s, gen_random_uuid()), %(name)s, %(description)s, %(owner)s, %(tags)s, %(type)s, %(source_type)s, %(source)s,
       %(source_query)s, %(python_task)s, %(target_table)s, %(mode)s, %(incremental_key)s, %(incremental_id_key)s,
       %(key_columns)s, %(batch_size)s, %(batch_size_exact)s, %(enabled)s, %(schedule_interval)s,
       %(next_due_at)s, %(checks)s, %(options)s)
RETURNING id;

-- update_pipeline --
-- Stores a changed definition. Disabling a RUNNING pipeline is the event `pause`. The row must be locked before: see
-- request_run
WITH chosen AS (
    SELECT id, status, rerun, 'pause' AS event FROM etl.etl_pipelines
     WHERE id = %(id)s AND enabled AND NOT %(enabled)s AND status = 'RUNNING'
       FOR UPDATE
), moved AS (
    -- include move
    -- include definition
    -- include guard
    RETURNING p.id
)
UPDATE etl.etl_pipelines p
   SET updated_at = now(),
       -- include definition
 WHERE p.id = %(id)s AND NOT EXISTS (SELECT FROM moved);

-- mark_files --
-- Records which file each of these pipelines was applied from. Earlier statements must have locked the rows; a version
-- that another session has stored before that is not the one of the file
UPDATE etl.etl_pipelines p
   SET file_name = given.name, file_applied_at = now(), file_digest = given.digest,
       file_differs = p.config_version <> given.version
  FROM unnest(%(ids)s::uuid[], %(versions)s::int[], %(names)s::text[], %(digests)s::bytea[])
       AS given (id, version, name, digest)
 WHERE p.id = given.id;

-- detach_file --
-- No file manages the pipeline any more
UPDATE etl.etl_pipelines SET file_name = NULL, file_applied_at = NULL, file_digest = NULL, file_differs = false
 WHERE id = %(id)s;

-- delete_steps --
-- Deletes every step of a pipeline, before its new ones are inserted
DELETE FROM etl.etl_pipeline_tasks WHERE pipeline_id = %(id)s;

-- insert_step --
-- Inserts one step of a task plan
INSERT INTO etl.etl_pipeline_tasks (pipeline_id, order_index, task_type, body, source_table, target_table, options)
VALUES (%(id)s, %(order_index)s, %(task_type)s, %(body)s, %(source_table)s, %(target_table)s, %(options)s);

-- delete_pipeline --
-- Deletes a pipeline with its steps, state and history, unless a runner holds its lease; with force even then
DELETE FROM etl.etl_pipelines WHERE id = %(id)s AND (lease_token IS NULL OR %(force)s) RETURNING id;

-- request_run --
-- `run`: stores the requests as `requests.place` has arranged them. A request that starts, or starts again, begins with
-- its first attempt. A request that is repeated while it waits promises the changes of now. `resume` continues a paused
-- request with the time that it promised before, and only cancels a requested pause.
-- An earlier statement must have locked the row. If this one waited for the lock, `chosen` would have the new status, but
-- the UPDATE searches the snapshot of the statement, which has the old one: the guard would refuse the event
WITH chosen AS (
    SELECT id, status, rerun, 'run' AS event, status IN ('IDLE', 'FAILED', 'PAUSED') AS enters_queue,
           status = 'RUN_REQUESTED' AND %(answers_current)s AND NOT %(resume)s AS is_repeated,
           status = 'PAUSED' AND request_id IS NOT NULL AND %(resume)s AS resumes
      FROM etl.etl_pipelines WHERE id = %(id)s AND enabled
       FOR UPDATE
)
-- include move
       request_id = %(request_id)s, requested_kind = %(kind)s, requested_options = %(options)s,
       rerun = %(rerun_request_id)s::uuid IS NOT NULL, rerun_held = %(rerun_held)s, rerun_request_id = %(rerun_request_id)s,
       rerun_kind = %(rerun_kind)s, rerun_options = %(rerun_options)s,
       requested_at = CASE WHEN chosen.enters_queue AND NOT chosen.resumes THEN now() ELSE p.requested_at END,
       -- not requested_at: a request that is repeated while it waits must keep its place in the queue
       promised_at = CASE WHEN chosen.is_repeated THEN now() ELSE p.promised_at END,
       requested_trigger = CASE WHEN chosen.enters_queue THEN %(trigger)s ELSE p.requested_trigger END,
       requested_due_at = CASE WHEN p.request_id IS DISTINCT FROM %(request_id)s THEN NULL ELSE p.requested_due_at END,
       returns_to = CASE WHEN chosen.enters_queue AND NOT chosen.resumes THEN chosen.status ELSE p.returns_to END,
       attempt = CASE WHEN chosen.enters_queue THEN 0 ELSE p.attempt END,
       next_attempt_at = CASE WHEN chosen.enters_queue THEN NULL ELSE p.next_attempt_at END
-- include guard
RETURNING p.status;

-- request_pause --
-- `pause`: immediate if no runner holds the pipeline, and its remaining attempts are dropped; otherwise between two
-- batches. The row must be locked before: see request_run
WITH chosen AS (
    SELECT id, status, rerun, 'pause' AS event FROM etl.etl_pipelines WHERE id = %(id)s FOR UPDATE
)
-- include move
       attempt = CASE WHEN step.new = 'PAUSED' THEN 0 ELSE p.attempt END,
       next_attempt_at = CASE WHEN step.new = 'PAUSED' THEN NULL ELSE p.next_attempt_at END
-- include guard
RETURNING p.status;

-- get_due --
-- What a poll finds due: a cheap question before the statements that act on it, whose planning takes longer than this
SELECT EXISTS (SELECT FROM etl.etl_pipelines WHERE enabled AND next_due_at <= now()) AS schedules,
       EXISTS (SELECT FROM etl.etl_pipelines WHERE
               -- include reconcile_due
       ) AS reconciles,
       EXISTS (SELECT FROM etl.etl_pipelines p WHERE
               -- include lease_expired
       ) AS leases;

-- get_time --
-- The current time of the database
SELECT clock_timestamp() AS now;

-- list_due --
-- Enabled pipelines whose due time has passed, the oldest due time first
SELECT id, schedule_interval, next_due_at, regular_due_at, now() AS now FROM etl.etl_pipelines
 WHERE enabled AND next_due_at <= now() ORDER BY next_due_at LIMIT %(limit)s;

-- fire_schedules --
-- `schedule`: consumes each due time once. A due time that another runner has consumed, or is consuming, is skipped. It
-- starts a run only if the pipeline's status has a step for the event. If the status changes between the snapshot and the
-- lock, the due time stays for the next poll
WITH chosen AS (
    SELECT s.id, s.status, s.rerun, s.next_due_at, seen.following, 'schedule' AS event FROM etl.etl_pipelines s
      JOIN unnest(%(ids)s::uuid[], %(due)s::timestamptz[], %(following)s::timestamptz[]) AS seen(id, due, following)
        ON seen.id = s.id AND seen.due = s.next_due_at
     WHERE s.enabled ORDER BY s.id
       FOR UPDATE OF s SKIP LOCKED
), moved AS (
    -- include move
           next_due_at = chosen.following, regular_due_at = NULL,
           request_id = gen_random_uuid(), requested_at = now(),
           requested_kind = NULL, requested_options = '{}', requested_trigger = 'schedule',
           requested_due_at = chosen.next_due_at, returns_to = chosen.status, attempt = 0, next_attempt_at = NULL
    -- include guard
    RETURNING p.name, p.status
), passed AS (
    UPDATE etl.etl_pipelines p SET next_due_at = chosen.following, regular_due_at = NULL
      FROM chosen WHERE p.id = chosen.id AND %(steps)s::jsonb -> chosen.event -> chosen.status IS NULL
    RETURNING p.name, p.status
)
SELECT name, status FROM moved UNION ALL SELECT name, status FROM passed;

-- lock_chains --
-- Changes of chains run one after another; otherwise two of them could close a cycle that neither sees
SELECT pg_advisory_xact_lock(hashtextextended('vitrine.chains', 0));

-- list_enabled --
-- Those of the names that a pipeline has, and whether it is enabled
SELECT name, enabled FROM etl.etl_pipelines WHERE name = ANY (%(names)s::text[]);

-- add_upstreams --
-- A pipeline runs after these as well; the foreign key locks them
INSERT INTO etl.etl_chains (pipeline_id, upstream_id)
SELECT %(id)s, id FROM etl.etl_pipelines WHERE name = ANY (%(names)s::text[]) ORDER BY id
    ON CONFLICT DO NOTHING;

-- remove_upstreams --
-- A pipeline runs after no other ones than these
DELETE FROM etl.etl_chains c
 WHERE c.pipeline_id = %(id)s
   AND NOT EXISTS (SELECT FROM etl.etl_pipelines p WHERE p.id = c.upstream_id AND p.name = ANY (%(names)s::text[]));

-- list_chains --
-- Every pipeline that runs after others, with their names
SELECT p.name, array_agg(u.name ORDER BY u.name) AS after
  FROM etl.etl_chains c JOIN etl.etl_pipelines p ON p.id = c.pipeline_id JOIN etl.etl_pipelines u ON u.id = c.upstream_id
 GROUP BY p.name;

-- list_upstreams --
-- The pipelines that a pipeline runs after, and their successes that belong to its next wave
SELECT u.name, c.succeeded_at
  FROM etl.etl_chains c JOIN etl.etl_pipelines u ON u.id = c.upstream_id WHERE c.pipeline_id = %(id)s ORDER BY u.name;

-- list_dependants --
-- Names of the pipelines that run after a pipeline
SELECT p.name FROM etl.etl_chains c JOIN etl.etl_pipelines p ON p.id = c.pipeline_id
 WHERE c.upstream_id = %(id)s ORDER BY p.name;

-- list_marts --
-- The tables of this database that enabled pipelines write, with their columns in order
SELECT p.name, n.nspname::text AS schema, c.relname::text AS relation, p.options ->> 'touch_column' AS touch_column,
       ARRAY(SELECT a.attname::text FROM pg_attribute a
              WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum) AS columns
  FROM etl.etl_pipelines p
  JOIN pg_class c ON c.relname = split_part(p.target_table, '.', 2)
  JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = split_part(p.target_table, '.', 1)
 WHERE p.enabled
 ORDER BY p.name;

-- record_upstream_success --
-- A pipeline has succeeded: those that run after it need no other success of it for their next wave
UPDATE etl.etl_chains SET succeeded_at = clock_timestamp() WHERE upstream_id = %(id)s;

-- fire_chains --
-- `chain`: starts every pipeline whose upstreams have all succeeded, and uses up their successes. If its mart shows all of
-- them already, because another run has read them, they are used up without a run. A pipeline whose status has no step for
-- the event, or that is disabled, keeps them. Rows that another session has locked are skipped, so that the end of a run
-- never waits for another pipeline and no deadlock is possible; the next poll of a runner finds them
WITH marked AS (
    SELECT c.pipeline_id, c.succeeded_at
      FROM etl.etl_chains c JOIN etl.etl_pipelines p ON p.id = c.pipeline_id
     WHERE c.succeeded_at IS NOT NULL AND p.enabled AND %(steps)s::jsonb -> 'chain' -> p.status IS NOT NULL
       AND NOT EXISTS (SELECT FROM etl.etl_chains o WHERE o.pipeline_id = c.pipeline_id AND o.succeeded_at IS NULL)
       -- guarantee: L3
       AND (%(around)s::uuid IS NULL OR c.pipeline_id = %(around)s
            OR c.pipeline_id IN (SELECT d.pipeline_id FROM etl.etl_chains d WHERE d.upstream_id = %(around)s))
       FOR UPDATE OF c SKIP LOCKED
), complete AS (
    -- not if a row of the wave was skipped
    SELECT pipeline_id, max(succeeded_at) AS last_success FROM marked GROUP BY pipeline_id
    HAVING count(*) = (SELECT count(*) FROM etl.etl_chains c WHERE c.pipeline_id = marked.pipeline_id)
), chosen AS (
    SELECT s.id, s.status, s.rerun, 'chain' AS event, coalesce(s.fresh_as_of >= complete.last_success, false) AS is_shown
      FROM etl.etl_pipelines s JOIN complete ON complete.pipeline_id = s.id
     WHERE s.enabled AND %(steps)s::jsonb -> 'chain' -> s.status IS NOT NULL
     ORDER BY s.id
       -- guarantee: L6
       FOR UPDATE OF s SKIP LOCKED
), moved AS (
    -- include move
           request_id = gen_random_uuid(), requested_at = now(), requested_kind = NULL, requested_options = '{}',
           requested_trigger = 'chain', requested_due_at = NULL, returns_to = chosen.status, attempt = 0,
           next_attempt_at = NULL
    -- include guard
       AND NOT chosen.is_shown
    RETURNING p.id
), used AS (
    -- guarantee: L1
    UPDATE etl.etl_chains c SET succeeded_at = NULL
      FROM chosen WHERE c.pipeline_id = chosen.id AND (chosen.is_shown OR chosen.id IN (SELECT id FROM moved))
)
SELECT id FROM moved;

-- fire_reconciles --
-- `schedule`: requests a deep reconcile of pipelines that are IDLE and whose interval has passed. The due times of their
-- schedules stay. A mart that was never built is not compared
WITH chosen AS (
    SELECT id, status, rerun, (options ->> 'reconcile_interval')::interval AS pause, 'schedule' AS event
      FROM etl.etl_pipelines
     WHERE
           -- include reconcile_due
       FOR UPDATE SKIP LOCKED
)
-- include move
       next_reconcile_at = now() + chosen.pause,
       request_id = gen_random_uuid(), requested_at = now(),
       requested_kind = %(kind)s, requested_options = %(options)s, requested_trigger = 'schedule',
       requested_due_at = NULL, returns_to = chosen.status, attempt = 0, next_attempt_at = NULL
-- include guard
RETURNING p.name;

-- seconds_until_due --
-- Seconds until the next due time; no row if no pipeline is scheduled
SELECT extract(epoch FROM next_due_at - clock_timestamp())::float8 AS seconds FROM etl.etl_pipelines
 WHERE enabled AND next_due_at IS NOT NULL ORDER BY next_due_at LIMIT 1;

-- expire_leases --
-- `expire`: returns a pipeline whose lease has expired to the queue, or to PAUSED. `crash_loop`: FAILED, if the run
-- made no progress and the attempt was the last one allowed; a request that leaves the checkpoint alone then returns the
-- pipeline to the status it had. An attempt does not count for a run outside user code if a run in user code died, or is
-- dying, with the same process
WITH expired AS (
    SELECT p.id, p.lease_token, p.status, p.rerun AND NOT p.rerun_held AS rerun, p.attempt,
           p.requested_kind = ANY (%(returning)s) AS returns, p.returns_to, coalesce(r.moved, false) AS progressed,
           r.id AS run_id, 'failure' = ANY (p.alerts) AS is_reported,
           coalesce(r.in_user_code, true) OR NOT EXISTS (
               SELECT FROM etl.etl_runs s
                WHERE s.in_user_code AND s.runner = r.runner AND s.id <> r.id
                  AND (s.status = 'RUNNING'
                       OR s.error_code IN ('LEASE_EXPIRED', 'CRASH_LOOP') AND s.finished_at > r.started_at)) AS charged
      FROM etl.etl_pipelines p
      LEFT JOIN etl.etl_runs r ON r.pipeline_id = p.id AND r.status = 'RUNNING'
     WHERE
           -- include lease_expired
       -- guarantee: A17
       FOR UPDATE OF p SKIP LOCKED
), judged AS (
    -- guarantee: A13
    SELECT *, CASE WHEN status <> 'RUNNING' OR NOT charged OR progressed OR attempt < %(max_attempts)s THEN 'expire'
                   WHEN returns THEN 'return_' || lower(coalesce(returns_to, 'IDLE')) ELSE 'crash_loop' END AS event
      FROM expired
), chosen AS (
    SELECT *, event <> 'expire' AS ends_request,
           CASE event WHEN 'expire' THEN 'LEASE_EXPIRED' ELSE 'CRASH_LOOP' END AS error_code,
           CASE event WHEN 'expire'
               THEN 'the runner stopped sending heartbeats; the next run continues from the checkpoint'
               ELSE 'the runner died three times in a row without progress; read its logs, then run the pipeline again' END
           AS error_message
      FROM judged
), freed AS (
    -- include move
           lease_token = NULL, lease_owner = NULL, lease_expires_at = NULL,
           attempt = CASE WHEN chosen.progressed OR chosen.ends_request OR step.new = 'PAUSED' THEN 0
                          WHEN chosen.charged THEN p.attempt ELSE greatest(p.attempt - 1, 0) END,
           postponed = CASE WHEN chosen.event = 'crash_loop' THEN 0 ELSE p.postponed END,
           last_error_code = CASE WHEN chosen.event = 'crash_loop' THEN chosen.error_code ELSE p.last_error_code END,
           last_error_message = CASE WHEN chosen.event = 'crash_loop' THEN chosen.error_message
                                     ELSE p.last_error_message END,
           last_error_at = CASE WHEN chosen.event = 'crash_loop' THEN clock_timestamp() ELSE p.last_error_at END,
           alerts = CASE WHEN chosen.event = 'crash_loop' AND NOT chosen.is_reported
                         THEN array_append(p.alerts, 'failure') ELSE p.alerts END,
           -- include requests
    -- include guard
       AND p.lease_token = chosen.lease_token
    RETURNING p.id, p.name, p.status, chosen.lease_token, chosen.event = 'crash_loop' AS crash_loop,
              chosen.error_code, chosen.error_message, chosen.run_id, chosen.is_reported
), reported AS (
    INSERT INTO etl.etl_notifications (event, pipeline_id, pipeline, details)
    SELECT 'failure', id, name, jsonb_build_object('code', error_code, 'run_id', run_id, 'status', status)
      FROM freed WHERE crash_loop AND NOT is_reported
), closed AS (
    UPDATE etl.etl_runs r
       SET status = 'ABANDONED', finished_at = clock_timestamp(),
           error_code = freed.error_code, error_message = freed.error_message
      FROM freed WHERE r.pipeline_id = freed.id AND r.status = 'RUNNING'
)
SELECT * FROM freed;

-- terminate_sessions --
-- Terminates the sessions of a lost lease, those on sources in this cluster included: a process stopped in the middle of a
-- COPY counts as active, so that no timeout ends its session
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
 WHERE split_part(application_name, ':', 1) = 'vitrine'
   AND split_part(application_name, ':', 2) =
       -- include tag
   AND split_part(application_name, ':', 3) = %(token)s::text
   AND pg_has_role(usesysid, 'USAGE') AND pid <> pg_backend_pid();

-- get_target_holder --
-- The pipeline that is disabled but still writes to a target, because a runner holds its lease
SELECT name, status, lease_owner FROM etl.etl_pipelines
 WHERE target_table = %(target)s AND lease_token IS NOT NULL AND NOT enabled AND id IS DISTINCT FROM %(id)s::uuid;

-- lock_source_limits --
-- Claims under source limits run one after another; otherwise two of them could take the last place of a source
SELECT pg_advisory_xact_lock(hashtextextended('vitrine.source_connections', 0));

-- list_full_sources --
-- Sources that have as many runs as their limit allows
SELECT p.source FROM etl.etl_pipelines p
  JOIN unnest(%(sources)s::text[], %(runs)s::integer[]) AS allowed(source, runs) USING (source)
 WHERE p.status IN ('RUNNING', 'PAUSE_REQUESTED')
 GROUP BY p.source, allowed.runs HAVING count(*) >= allowed.runs;

-- claim_next --
-- `claim`: takes the oldest requested pipeline whose source is not full; one that another runner is claiming is skipped
WITH chosen AS (
    SELECT id, status, rerun, 'claim' AS event FROM etl.etl_pipelines
     -- guarantee: D14
     WHERE status = 'RUN_REQUESTED' AND enabled
       AND (next_attempt_at IS NULL OR next_attempt_at <= now())
       AND (%(only)s::uuid IS NULL OR id = %(only)s::uuid)
       AND source <> ALL (%(full_sources)s::text[])
     ORDER BY requested_at, id LIMIT 1
       FOR UPDATE SKIP LOCKED
)
-- include move
       lease_token = nextval('etl.fencing_seq'), lease_owner = %(runner)s,
       lease_expires_at = clock_timestamp() + %(ttl)s::interval, heartbeat_at = clock_timestamp(),
       attempt = p.attempt + 1, next_attempt_at = NULL, reload_version = NULL
-- include guard
RETURNING p.*,
       -- include promise
       AS promise,
       -- include tag
       AS tag,
       -- include parts
;

-- request_reload --
-- Requests that the current run applies the stored throttle; no row if no runner holds the pipeline
UPDATE etl.etl_pipelines SET reload_version = config_version
 WHERE id = %(id)s AND lease_token IS NOT NULL
RETURNING config_version;

-- get_running_config --
-- The configuration that the current run captured
SELECT config FROM etl.etl_runs WHERE pipeline_id = %(id)s AND status = 'RUNNING';

-- update_run_config --
-- Records the configuration with which the current run continues; no row means that the lease is lost
WITH
-- include fence
UPDATE etl.etl_runs SET config = %(config)s
 WHERE id = %(run_id)s AND status = 'RUNNING' AND EXISTS (SELECT FROM held);

-- poll_run --
-- Status and requested reload for a run between two batches; no row if the lease is lost
SELECT status, reload_version FROM etl.etl_pipelines WHERE id = %(id)s AND lease_token = %(token)s;

-- insert_run --
-- Inserts the history row of an attempt, with the configuration that it captured; whether the attempt before it lost its
-- lease, so that requests of its runner may still be under way
INSERT INTO etl.etl_runs (pipeline_id, request_id, promised_at, attempt, trigger, due_at, kind, config, runner,
       lease_token)
VALUES (%(pipeline_id)s, %(request_id)s, %(promised_at)s, %(attempt)s, %(trigger)s, %(due_at)s, %(kind)s, %(config)s,
       %(runner)s, %(token)s)
RETURNING id, coalesce((SELECT r.error_code IN ('LEASE_EXPIRED', 'CRASH_LOOP') FROM etl.etl_runs r
                         WHERE r.pipeline_id = %(pipeline_id)s ORDER BY r.id DESC LIMIT 1), false) AS taken_over;

-- heartbeat --
-- Extends a lease that has not expired; no row means that it is lost. An expired lease never becomes valid again
UPDATE etl.etl_pipelines
   SET lease_expires_at = clock_timestamp() + %(ttl)s::interval, heartbeat_at = clock_timestamp()
 -- guarantee: A11
 WHERE id = %(id)s AND lease_token = %(token)s AND lease_expires_at > clock_timestamp()
RETURNING status;

-- get_lease_status --
-- Status of the pipeline while the lease is ours, expired or not; no row means that another runner has it
SELECT status FROM etl.etl_pipelines WHERE id = %(id)s AND lease_token = %(token)s;

-- end_run --
-- Ends the lease with one event, guarded by the token. `finish`, `finish_paused`, `fail` and `postpone` end the request as
-- well, and `finish` and `postpone` start the one that follows, if there is one. A postponed pipeline is due after the
-- delay; its regular due time is kept and applies again after the next run. Without a schedule nothing can be postponed.
-- With `returns` the event is the one that returns the pipeline to the status before the request; last error, postponement
-- and freshness stay as they are.
-- It also records how fresh the mart is: when the read of its rows began, which for a full load may be several runs ago; an
-- incremental run has read everything after its checkpoint since it began. Given a batch_seq, it ends nothing if the state
-- has another: a server that crashed may have lost the last batches, which commit asynchronously; this commit is
-- synchronous and makes all earlier ones durable
WITH chosen AS (
    -- guarantee: D23
    SELECT id, status, rerun AND NOT (rerun_held AND %(returns)s) AS rerun,
           CASE WHEN %(returns)s THEN 'return_' || lower(coalesce(returns_to, 'IDLE'))
                WHEN %(event)s::text = 'postpone' AND status = 'RUNNING' AND next_due_at IS NULL
                THEN 'fail' ELSE %(event)s::text END AS event,
           %(returns)s OR %(event)s::text IN ('finish', 'finish_paused', 'fail', 'postpone') AS ends_request,
           NOT %(returns)s AND (%(succeeded)s OR %(event)s::text = 'fail') AS ends_postponement,
           NOT %(returns)s AND %(succeeded)s AS heals
      FROM etl.etl_pipelines
     WHERE id = %(id)s AND lease_token = %(token)s
       AND (%(batch_seq)s::bigint IS NULL OR EXISTS (
            -- guarantee: J12
            SELECT FROM etl.etl_state WHERE pipeline_id = %(id)s AND batch_seq = %(batch_seq)s))
       FOR UPDATE
)
-- include move
       lease_token = NULL, lease_owner = NULL, lease_expires_at = NULL,
       -- include requests
       ,
       attempt = CASE WHEN chosen.event = 'retry' AND step.new = 'RUN_REQUESTED' THEN %(attempt)s
                      -- guarantee: A14
                      WHEN chosen.event = 'release' THEN greatest(p.attempt - 1, 0) ELSE 0 END,
       next_attempt_at = CASE WHEN chosen.event = 'retry' AND step.new = 'RUN_REQUESTED'
                              THEN clock_timestamp() + %(delay)s::interval END,
       next_due_at = CASE WHEN chosen.event = 'postpone' AND step.new = 'IDLE'
                          THEN clock_timestamp() + %(delay)s::interval
                          WHEN chosen.ends_postponement THEN coalesce(p.regular_due_at, p.next_due_at)
                          ELSE p.next_due_at END,
       regular_due_at = CASE WHEN chosen.event = 'postpone' AND step.new = 'IDLE'
                             THEN coalesce(p.regular_due_at, p.next_due_at)
                             WHEN NOT chosen.ends_postponement THEN p.regular_due_at END,
       postponed = CASE WHEN chosen.event = 'postpone' THEN p.postponed + 1
                        WHEN chosen.ends_postponement THEN 0 ELSE p.postponed END,
       last_error_code = CASE WHEN NOT chosen.heals
                              THEN coalesce(%(error_code)s::text, p.last_error_code) END,
       last_error_message = CASE WHEN NOT chosen.heals
                                 THEN coalesce(left(%(error_message)s::text, 2000), p.last_error_message) END,
       last_error_at = CASE WHEN chosen.heals THEN NULL WHEN %(error_code)s::text IS NULL THEN p.last_error_at
                            ELSE clock_timestamp() END,
       fresh_as_of = CASE WHEN chosen.event = 'finish'
                          THEN (SELECT CASE r.kind WHEN 'full' THEN coalesce(s.generation_started_at, r.started_at)
                                                   WHEN 'incremental' THEN r.started_at ELSE p.fresh_as_of END
                                  FROM etl.etl_runs r JOIN etl.etl_state s USING (pipeline_id)
                                 WHERE r.pipeline_id = p.id AND r.status = 'RUNNING')
                          ELSE p.fresh_as_of END
-- include guard
RETURNING p.status, p.alerts, p.rejects_noted,
       EXISTS (SELECT FROM etl.etl_chains c WHERE c.upstream_id = p.id)
       OR EXISTS (SELECT FROM etl.etl_chains c WHERE c.pipeline_id = p.id) AS chained;

-- record_run_end --
-- Records the end of an attempt in its history row; how many rows it has put into quarantine
UPDATE etl.etl_runs
   SET status = %(status)s, finished_at = clock_timestamp(), error_code = %(error_code)s,
       error_message = left(%(error_message)s, 2000)
 WHERE id = %(run_id)s AND status = 'RUNNING'
RETURNING rows_rejected;

-- enter_user_code --
-- Records that user code starts: from here on it may kill the process. No row means that the lease is lost
WITH
-- include fence
UPDATE etl.etl_runs SET in_user_code = true WHERE id = %(run_id)s AND EXISTS (SELECT FROM held);

-- describe_run --
-- Records the lane of a run and the planner's estimate of its rows; no row means that the lease is lost
WITH
-- include fence
UPDATE etl.etl_runs SET rows_expected = %(rows)s, lane = %(lane)s
 WHERE id = %(run_id)s AND EXISTS (SELECT FROM held);

-- insert_reconciliation --
-- Stores the report of a deep reconcile, with the verdict of its pipeline; no row means that the lease is lost. A mart
-- without differences equals its source as of the start of the run; if keys wait for the next run, as of its own freshness.
-- Of the reports of a pipeline, the newest are kept
WITH
-- include fence
, inserted AS (
    INSERT INTO etl.etl_reconciliations (pipeline_id, run_id, started_at, verdict, verified_until, missing, extra, different,
           waiting, repaired, report)
    SELECT p.id, r.id, r.started_at, %(verdict)s,
           CASE WHEN %(verdict)s = 'equal' THEN CASE WHEN %(waiting)s = 0 THEN r.started_at ELSE p.fresh_as_of END END,
           %(missing)s, %(extra)s, %(different)s, %(waiting)s, %(repaired)s, %(report)s
      FROM held, etl.etl_pipelines p JOIN etl.etl_runs r ON r.id = %(run_id)s
     WHERE p.id = %(id)s
    RETURNING pipeline_id, verdict, verified_until, finished_at
), shown AS (
    UPDATE etl.etl_pipelines p
       SET verdict = inserted.verdict, verdict_at = inserted.finished_at,
           verified_until = coalesce(inserted.verified_until, p.verified_until)
      FROM inserted WHERE p.id = inserted.pipeline_id
    RETURNING p.id
), forgotten AS (
    DELETE FROM etl.etl_reconciliations WHERE id IN (
        SELECT id FROM etl.etl_reconciliations WHERE pipeline_id = %(id)s ORDER BY id DESC OFFSET %(others)s)
)
SELECT id FROM shown;

-- forget_verdict --
-- A definition that reads or writes something else: what was proven concerns the old one. The reports stay
UPDATE etl.etl_pipelines SET verified_until = NULL, verdict = NULL, verdict_at = NULL
 WHERE id = %(id)s AND verdict IS NOT NULL;

-- list_reconciliations --
-- One page of the reports of a pipeline, newest first
SELECT id, run_id, started_at, finished_at, verdict, verified_until, report
  FROM etl.etl_reconciliations WHERE pipeline_id = %(id)s AND id < %(before)s ORDER BY id DESC LIMIT %(limit)s;

-- record_result --
-- Records what a reconcile, a replay or a resend has found; no row means that the lease is lost
WITH
-- include fence
UPDATE etl.etl_runs SET result = %(result)s WHERE id = %(run_id)s AND EXISTS (SELECT FROM held);

-- record_checks --
-- Records what the checks of a pipeline have found in the rows of a run; no row means that the lease is lost
WITH
-- include fence
UPDATE etl.etl_runs SET checks = %(checks)s WHERE id = %(run_id)s AND EXISTS (SELECT FROM held);

-- hold_lease --
-- The fence alone; no row means that the lease is lost (ETL01)
WITH
-- include fence
SELECT status FROM held;

-- get_state --
-- The stored state of a pipeline's reads
SELECT * FROM etl.etl_state WHERE pipeline_id = %(id)s;

-- open_state --
-- The state a run starts from, created on the first run
INSERT INTO etl.etl_state (pipeline_id, lease_token) VALUES (%(id)s, %(token)s)
    ON CONFLICT (pipeline_id) DO UPDATE SET lease_token = %(token)s
RETURNING *, coalesce(clock_timestamp() - generation_started_at, interval '0') AS generation_age,
       coalesce(generation_started_at < (SELECT
       -- include promise
       FROM etl.etl_pipelines p WHERE p.id = pipeline_id), false) AS generation_outdated;

-- note_horizon --
-- Records what held the checkpoint back in the last run; writes nothing if that has not changed
WITH
-- include fence
UPDATE etl.etl_state SET horizon_lag_seconds = %(lag)s, horizon_blocker = %(blocker)s
 WHERE pipeline_id = %(id)s AND EXISTS (SELECT FROM held)
   AND (horizon_lag_seconds, horizon_blocker) IS DISTINCT FROM (%(lag)s::float8, %(blocker)s::text);

-- are_deletes_due --
-- Whether the keys of source and mart must be compared again
SELECT deletes_checked_at IS NULL OR deletes_checked_at + %(interval)s::interval <= clock_timestamp() AS due
  FROM etl.etl_state WHERE pipeline_id = %(id)s;

-- note_deletes_checked --
-- Records that the keys of source and mart were compared
WITH
-- include fence
UPDATE etl.etl_state SET deletes_checked_at = clock_timestamp() WHERE pipeline_id = %(id)s AND EXISTS (SELECT FROM held);

-- open_generation --
-- Starts a load: the next generation, with no rows staged. The fence must be held
UPDATE etl.etl_state
   SET generation = generation + 1, generation_open = true, generation_cursor = NULL, generation_position = NULL,
       generation_rows = 0, generation_started_at = clock_timestamp(), generation_fingerprint = %(fingerprint)s,
       generation_horizon = %(horizon)s, batch_seq = batch_seq + 1, updated_at = now()
 WHERE pipeline_id = %(id)s AND batch_seq = %(batch_seq)s
RETURNING *, interval '0' AS generation_age, false AS generation_outdated;

-- save_state --
-- Fence, state and counts of a unit, in the transaction of its rows where there is one. No row: another runner has
-- the pipeline (ETL01); otherwise no runner can take it before this transaction ends. No batch_seq: the state was changed
-- by another session (ETL02)
WITH
-- include fence
, saved AS (
    UPDATE etl.etl_state
       SET cursor = %(cursor)s, pending_cursor = %(pending_cursor)s, pending_since = %(pending_since)s,
           cursor_fingerprint = %(cursor_types)s, generation_open = %(generation_open)s,
           generation_cursor = %(generation_cursor)s, generation_position = %(generation_position)s,
           generation_rows = %(generation_rows)s, target_identity = %(identity)s, sink_facts = %(facts)s,
           -- only a backfill has a key; a run between two of its attempts leaves what it has written
           backfill_key = CASE WHEN %(backfill_key)s::text IS NULL THEN backfill_key ELSE %(backfill_key)s END,
           backfill_cursor = CASE WHEN %(backfill_key)s::text IS NULL THEN backfill_cursor ELSE %(backfill_cursor)s END,
           batch_seq = batch_seq + 1, lease_token = %(token)s, updated_at = now()
     WHERE pipeline_id = %(id)s AND batch_seq = %(batch_seq)s AND EXISTS (SELECT FROM held)
    RETURNING batch_seq
), counted AS (
    UPDATE etl.etl_runs
       SET rows_read = rows_read + %(read)s, rows_written = rows_written + %(written)s,
           rows_deleted = rows_deleted + %(deleted)s, rows_rejected = rows_rejected + %(rejected)s,
           rows_repeated = rows_repeated + %(repeated)s, moved = moved OR %(moves)s,
           batches = batches + %(batches)s, slowest_batch_seconds = greatest(slowest_batch_seconds, %(seconds)s)
      FROM saved WHERE id = %(run_id)s
)
SELECT held.status, held.reload_version, saved.batch_seq FROM held LEFT JOIN saved ON true;

-- upsert_rejects --
-- Stores rejected rows; a key that is already in quarantine gets the newer version of its row
INSERT INTO etl.etl_rejects (pipeline_id, run_id, key, column_name, code, sqlstate, reason, row)
SELECT %(id)s, %(run_id)s, key, column_name, code, code, reason, row::jsonb
  FROM json_to_recordset(%(rejects)s::json) AS rejected(key text, column_name text, code text, reason text, row text)
    ON CONFLICT (pipeline_id, key) WHERE closed_at IS NULL
    DO UPDATE SET run_id = excluded.run_id, column_name = excluded.column_name, code = excluded.code,
                  sqlstate = excluded.sqlstate,
                  reason = excluded.reason, row = excluded.row, created_at = now();

-- close_rejects --
-- Closes the rejects of keys whose newer version was written
UPDATE etl.etl_rejects SET closed_at = now()
 WHERE pipeline_id = %(id)s AND closed_at IS NULL AND key IN (SELECT json_array_elements_text(%(keys)s::json));

-- list_rejects --
-- One page of the rows in quarantine, oldest first; the rows themselves only if they are wanted
SELECT id, run_id, key, column_name, coalesce(code, sqlstate) AS code, reason,
       CASE WHEN %(with_rows)s THEN row END AS row, created_at
  FROM etl.etl_rejects
 WHERE pipeline_id = %(id)s AND closed_at IS NULL AND id > %(after)s ORDER BY id LIMIT %(limit)s;

-- get_reject --
-- The row in quarantine that has one of these keys
SELECT id, run_id, key, column_name, coalesce(code, sqlstate) AS code, reason, NULL AS row, created_at
  FROM etl.etl_rejects
 WHERE pipeline_id = %(id)s AND closed_at IS NULL AND key = ANY(%(keys)s) ORDER BY id LIMIT 1;

-- count_rejects --
-- How many rows of a pipeline are in quarantine
SELECT count(*) AS rows FROM etl.etl_rejects WHERE pipeline_id = %(id)s AND closed_at IS NULL;

-- list_known_generations --
-- Loads under construction, and those that a rollback can restore; staged rows of any other load can be removed
SELECT pipeline_id, generation FROM etl.etl_state WHERE generation_open
 UNION ALL SELECT pipeline_id, generation FROM etl.etl_generations;

-- leave_generation --
-- The live generation is replaced: stores the state of the reads as it was while it was live. A reset has cleared identity
-- and facts, but not those of the generation
UPDATE etl.etl_generations g
   SET replaced_at = clock_timestamp(), cursor = %(cursor)s, pending_cursor = %(pending_cursor)s,
       pending_since = %(pending_since)s, cursor_fingerprint = %(cursor_types)s,
       fresh_as_of = greatest(g.fresh_as_of, p.fresh_as_of),
       target_identity = coalesce(%(identity)s, g.target_identity),
       sink_facts = CASE WHEN %(facts)s::jsonb = '{}' THEN g.sink_facts ELSE %(facts)s::jsonb END
  FROM etl.etl_pipelines p
 WHERE p.id = %(id)s AND g.pipeline_id = p.id AND g.replaced_at IS NULL
RETURNING g.generation;

-- insert_generation --
-- The generation that was just published is live. Those that were live longest ago are forgotten
WITH forgotten AS (
    DELETE FROM etl.etl_generations WHERE pipeline_id = %(id)s AND generation IN (
        SELECT generation FROM etl.etl_generations WHERE pipeline_id = %(id)s
         ORDER BY replaced_at DESC OFFSET %(others)s)
)
INSERT INTO etl.etl_generations (pipeline_id, generation, replaces, cursor, pending_cursor, pending_since,
       cursor_fingerprint, fresh_as_of, target_identity, sink_facts, rows, fingerprint)
SELECT pipeline_id, %(generation)s, %(replaces)s, %(cursor)s, %(pending_cursor)s, %(pending_since)s, %(cursor_types)s,
       generation_started_at, %(identity)s, %(facts)s, %(rows)s, %(fingerprint)s
  FROM etl.etl_state WHERE pipeline_id = %(id)s;

-- restore_generation --
-- An earlier generation is live again, and the mart is as fresh as it was then
WITH restored AS (
    UPDATE etl.etl_generations SET replaced_at = NULL, restored_by = %(request_id)s
     WHERE pipeline_id = %(id)s AND generation = %(generation)s
    RETURNING pipeline_id, fresh_as_of
)
UPDATE etl.etl_pipelines p
   SET fresh_as_of = restored.fresh_as_of, verified_until = NULL, verdict = NULL, verdict_at = NULL
  FROM restored WHERE p.id = restored.pipeline_id
RETURNING p.id;

-- list_restorable --
-- The live generation of a pipeline, and the one that was live before it
SELECT g.*, g.replaced_at IS NULL AS live
  FROM etl.etl_generations g
  JOIN etl.etl_generations l ON l.pipeline_id = g.pipeline_id AND l.replaced_at IS NULL
 WHERE g.pipeline_id = %(id)s AND g.generation IN (l.generation, l.replaces);

-- forget_generations --
-- Deletes the generations of a pipeline that has another cursor, key or target now
DELETE FROM etl.etl_generations WHERE pipeline_id = %(id)s;

-- reset_state --
-- Deletes the checkpoint; the generation number stays, so that the name of a staging table is never used twice
UPDATE etl.etl_state
   SET cursor = NULL, pending_cursor = NULL, pending_since = NULL, cursor_fingerprint = NULL, generation_open = false,
       generation_cursor = NULL, generation_position = NULL, generation_rows = 0, target_identity = NULL,
       sink_facts = '{}', batch_seq = batch_seq + 1, updated_at = now()
 WHERE pipeline_id = %(id)s;

-- parse_cursor --
-- A value of a cursor column in its canonical text, and whether it lies before the other value, which is canonical. NULL:
-- values of this type have no order here. Only the branch of the type is evaluated, so that no other one can fail
SELECT CASE %(type)s::text
       WHEN 'timestamp with time zone' THEN (%(value)s::text::timestamptz)::text
       WHEN 'timestamp without time zone' THEN (%(value)s::text::timestamp)::text
       WHEN 'date' THEN (%(value)s::text::date)::text
       WHEN 'smallint' THEN (%(value)s::text::smallint)::text
       WHEN 'integer' THEN (%(value)s::text::integer)::text
       WHEN 'bigint' THEN (%(value)s::text::bigint)::text
       WHEN 'numeric' THEN (%(value)s::text::numeric)::text
       END AS text,
       CASE %(type)s::text
       WHEN 'timestamp with time zone' THEN %(value)s::text::timestamptz <= %(current)s::text::timestamptz
       WHEN 'timestamp without time zone' THEN %(value)s::text::timestamp <= %(current)s::text::timestamp
       WHEN 'date' THEN %(value)s::text::date <= %(current)s::text::date
       WHEN 'smallint' THEN %(value)s::text::smallint <= %(current)s::text::smallint
       WHEN 'integer' THEN %(value)s::text::integer <= %(current)s::text::integer
       WHEN 'bigint' THEN %(value)s::text::bigint <= %(current)s::text::bigint
       WHEN 'numeric' THEN %(value)s::text::numeric <= %(current)s::text::numeric
       END AS is_earlier;

-- use_utc --
-- Times of this transaction are read and written in UTC and ISO, as cursors are stored
SELECT set_config('TimeZone', 'UTC', true), set_config('DateStyle', 'ISO, YMD', true);

-- rewind_state --
-- Moves the checkpoint back; what it belongs to stays
UPDATE etl.etl_state
   SET cursor = %(cursor)s, pending_cursor = NULL, pending_since = NULL, batch_seq = batch_seq + 1, updated_at = now()
 WHERE pipeline_id = %(id)s;

-- get_installation --
-- The id of this installation
SELECT id FROM etl.etl_installation;

-- get_run_context --
-- What a run's sink needs to know: the installation, its own facts, and the keys in quarantine
SELECT (SELECT id::text FROM etl.etl_installation) AS installation,
       coalesce((SELECT sink_facts FROM etl.etl_state WHERE pipeline_id = %(id)s), '{}') AS facts,
       coalesce((SELECT array_agg(key) FROM etl.etl_rejects
                  WHERE pipeline_id = %(id)s AND closed_at IS NULL), '{}') AS open_rejects;

-- list_runs --
-- Runs of a pipeline, newest first
SELECT *,
       -- include elapsed
  FROM etl.etl_runs WHERE pipeline_id = %(id)s AND id < %(before)s ORDER BY id DESC LIMIT %(limit)s;

-- get_last_run_of_request --
-- The newest attempt of a request
SELECT *,
       -- include elapsed
  FROM etl.etl_runs WHERE request_id = %(request_id)s ORDER BY id DESC LIMIT 1;

-- get_pipeline_of_request --
-- The pipeline in which a request is waiting, running or paused; the promise of a rerun is set when it enters the queue,
-- and only runs promise changes
SELECT p.id, p.name, p.status, p.request_id = %(request_id)s AS current,
       CASE WHEN p.request_id = %(request_id)s AND coalesce(p.requested_kind, 'run') IN ('run', 'full') THEN
       -- include promise
       END AS promised_at
  FROM etl.etl_pipelines p
 WHERE p.request_id = %(request_id)s OR p.rerun_request_id = %(request_id)s;

-- list_open_requests --
-- Those of the requests that are waiting, running or paused; one behind a run that failed has failed with it
SELECT request_id AS id FROM etl.etl_pipelines WHERE request_id = ANY (%(ids)s::uuid[]) AND status <> 'FAILED'
 UNION
SELECT rerun_request_id FROM etl.etl_pipelines WHERE rerun_request_id = ANY (%(ids)s::uuid[]) AND status <> 'FAILED';

-- get_run_statistics --
-- Figures over the newest runs of a pipeline, or over those of them that started within the last days
WITH newest AS (
    SELECT * FROM etl.etl_runs WHERE pipeline_id = %(id)s ORDER BY id DESC LIMIT %(limit)s
), counted AS (
    SELECT *, extract(epoch FROM finished_at - started_at)::float8 AS seconds FROM newest
     WHERE %(days)s::integer IS NULL OR started_at > now() - make_interval(days => %(days)s)
)
SELECT count(*) AS runs, min(started_at) AS since,
       coalesce((SELECT jsonb_object_agg(status, runs)
                   FROM (SELECT status, count(*) AS runs FROM counted GROUP BY status) AS by_status), '{}') AS by_status,
       coalesce(sum(rows_read), 0)::bigint AS rows_read, coalesce(sum(rows_written), 0)::bigint AS rows_written,
       coalesce(sum(rows_deleted), 0)::bigint AS rows_deleted, coalesce(sum(rows_rejected), 0)::bigint AS rows_rejected,
       percentile_cont(0.5) WITHIN GROUP (ORDER BY seconds) FILTER (WHERE status = 'SUCCESS') AS seconds_p50,
       percentile_cont(0.95) WITHIN GROUP (ORDER BY seconds) FILTER (WHERE status = 'SUCCESS') AS seconds_p95,
       max(seconds) FILTER (WHERE status = 'SUCCESS') AS seconds_max,
       (SELECT finished_at FROM etl.etl_runs WHERE pipeline_id = %(id)s AND status = 'SUCCESS'
         ORDER BY id DESC LIMIT 1) AS last_success_at,
       max(finished_at) FILTER (WHERE status IN ('FAILED', 'ABANDONED')) AS last_failure_at
  FROM counted;

-- get_run --
-- One attempt
SELECT *,
       -- include elapsed
  FROM etl.etl_runs WHERE id = %(run_id)s;

-- prune_old_runs --
-- Deletes runs that are too old, the oldest first, at most `limit`; the newest run and the newest success of a
-- pipeline stay
DELETE FROM etl.etl_runs WHERE id IN (
    SELECT r.id FROM etl.etl_runs r
     WHERE r.finished_at < now() - %(max_age)s::interval
       AND EXISTS (SELECT FROM etl.etl_runs n WHERE n.pipeline_id = r.pipeline_id AND n.id > r.id)
       AND (r.status <> 'SUCCESS' OR EXISTS (SELECT FROM etl.etl_runs n WHERE n.pipeline_id = r.pipeline_id
                                                AND n.id > r.id AND n.status = 'SUCCESS'))
     ORDER BY r.finished_at LIMIT %(limit)s
       FOR UPDATE OF r SKIP LOCKED);

-- prune_excess_runs --
-- Deletes runs beyond the number kept per pipeline, at most `limit`; the newest success stays
DELETE FROM etl.etl_runs WHERE id IN (
    SELECT r.id FROM etl.etl_pipelines p
     CROSS JOIN LATERAL (SELECT id FROM etl.etl_runs WHERE pipeline_id = p.id
                          ORDER BY id DESC OFFSET %(max_runs)s LIMIT 1) AS beyond
      JOIN etl.etl_runs r ON r.pipeline_id = p.id AND r.id <= beyond.id
     WHERE r.status <> 'RUNNING'
       AND (r.status <> 'SUCCESS' OR EXISTS (SELECT FROM etl.etl_runs n WHERE n.pipeline_id = r.pipeline_id
                                                AND n.id > r.id AND n.status = 'SUCCESS'))
     LIMIT %(limit)s
       FOR UPDATE OF r SKIP LOCKED);

-- register_runner --
-- Records that a runner process is alive
INSERT INTO etl.etl_runners (name) VALUES (%(name)s) ON CONFLICT (name) DO UPDATE SET seen_at = now();

-- deregister_runner --
-- Removes a runner process that stops; also those that were killed more than a day ago
DELETE FROM etl.etl_runners WHERE name = %(name)s OR seen_at < now() - interval '1 day';

-- count_live_runners --
-- Number of runner processes seen within the given time
SELECT count(*) AS alive FROM etl.etl_runners WHERE seen_at > now() - %(within)s::interval;

-- list_pipeline_metrics --
-- Values for the metrics of every pipeline; ages are in seconds
SELECT p.id, p.name, p.enabled, p.status,
       extract(epoch FROM clock_timestamp() - p.fresh_as_of)::float8 AS mart_age,
       CASE WHEN p.status IN ('RUNNING', 'PAUSE_REQUESTED')
            THEN extract(epoch FROM clock_timestamp() - p.heartbeat_at)::float8 END AS heartbeat_age,
       CASE WHEN p.status = 'RUN_REQUESTED' AND p.enabled AND coalesce(p.next_attempt_at, p.requested_at) <= now()
            THEN extract(epoch FROM clock_timestamp() - coalesce(p.next_attempt_at, p.requested_at))::float8
            END AS waiting,
       CASE WHEN p.schedule_interval ~ '^[0-9]+[smhd]$'
            THEN extract(epoch FROM p.schedule_interval::interval)::float8 END AS schedule,
       s.horizon_lag_seconds AS horizon_lag, p.postponed, p.last_error_code,
       -- include stale
       AS stale,
       extract(epoch FROM clock_timestamp() - p.verified_until)::float8 AS verified_age,
       CASE p.verdict WHEN 'different' THEN 1 WHEN 'equal' THEN 0 END AS differs
  FROM etl.etl_pipelines p LEFT JOIN etl.etl_state s ON s.pipeline_id = p.id
 ORDER BY p.name;

-- list_late_facts --
-- Of pipelines whose marts are late: what decides why. Who paused or disabled one is the last such entry of the audit log; a
-- pause of a pipeline that was paused already is none.
-- A request that leaves the checkpoint alone makes no mart fresh, so that the status counts to which the pipeline returns
SELECT p.id, clock_timestamp() AS now, p.enabled, w.status,
       CASE WHEN w.status = p.status THEN p.status_since END AS status_since, p.source, p.last_error_code, p.last_error_at,
       p.lease_owner, p.lease_expires_at, p.next_attempt_at, p.next_due_at, p.postponed,
       s.horizon_blocker, s.horizon_lag_seconds,
       EXISTS (SELECT FROM etl.etl_chains c WHERE c.pipeline_id = p.id) AS chained,
       ARRAY(SELECT u.name FROM etl.etl_chains c JOIN etl.etl_pipelines u ON u.id = c.upstream_id
              WHERE c.pipeline_id = p.id AND c.succeeded_at IS NULL ORDER BY u.name) AS missing_upstreams,
       a.actor AS halted_by, a.at AS halted_at
  FROM etl.etl_pipelines p
 CROSS JOIN LATERAL (
       SELECT CASE WHEN p.status IN ('RUN_REQUESTED', 'RUNNING') AND NOT p.rerun AND p.requested_kind = ANY (%(returning)s)
                   THEN coalesce(p.returns_to, 'IDLE') ELSE p.status END AS status) w
  LEFT JOIN etl.etl_state s ON s.pipeline_id = p.id
  LEFT JOIN LATERAL (
       SELECT actor, at FROM etl.etl_audit
        WHERE pipeline = p.name AND pipeline_id = p.id
          AND CASE WHEN p.enabled THEN operation IN ('pipelines.pause', 'pipelines.rollback')
                        AND coalesce(before ->> 'status', '') NOT IN ('PAUSED', 'PAUSE_REQUESTED')
                   ELSE after ->> 'enabled' = 'false' END
        ORDER BY id DESC LIMIT 1) a ON NOT p.enabled OR w.status IN ('PAUSED', 'PAUSE_REQUESTED')
 WHERE p.id = ANY (%(ids)s);

-- open_alert --
-- A condition has begun: one message, unless an earlier one has reported it and it has not ended since
WITH opened AS (
    UPDATE etl.etl_pipelines SET alerts = array_append(alerts, %(event)s::text)
     -- guarantee: L7
     WHERE id = %(id)s AND %(event)s::text <> ALL (alerts)
    RETURNING id, name
)
INSERT INTO etl.etl_notifications (event, pipeline_id, pipeline, details)
SELECT %(event)s, id, name, %(details)s FROM opened;

-- close_alert --
-- A condition that was reported has ended
WITH closed AS (
    UPDATE etl.etl_pipelines SET alerts = array_remove(alerts, %(event)s::text)
     WHERE id = %(id)s AND %(event)s::text = ANY (alerts)
    RETURNING id, name
)
INSERT INTO etl.etl_notifications (event, pipeline_id, pipeline, details)
SELECT 'recovery', id, name, %(details)s FROM closed;

-- record_rejects --
-- Compares the rows in quarantine with their number when they were last counted; a message if they are more
WITH counted AS (
    SELECT count(*) AS rows FROM etl.etl_rejects WHERE pipeline_id = %(id)s AND closed_at IS NULL
), before AS (
    SELECT id, name, rejects_noted FROM etl.etl_pipelines WHERE id = %(id)s
), noted AS (
    UPDATE etl.etl_pipelines p SET rejects_noted = counted.rows
      FROM counted WHERE p.id = %(id)s AND p.rejects_noted <> counted.rows
)
INSERT INTO etl.etl_notifications (event, pipeline_id, pipeline, details)
SELECT 'quarantine', before.id, before.name,
       jsonb_build_object('rows', counted.rows, 'new', counted.rows - before.rejects_noted, 'run_id', %(run_id)s::bigint)
  FROM before, counted WHERE counted.rows > before.rejects_noted;

-- record_stale --
-- A message for each mart that has become stale, and for each reported one that is not stale any more
WITH judged AS (
    SELECT p.id, 'stale' = ANY (p.alerts) AS is_reported,
           -- include stale
           AS is_stale
      FROM etl.etl_pipelines p
), opened AS (
    UPDATE etl.etl_pipelines p SET alerts = array_append(p.alerts, 'stale')
      FROM judged WHERE p.id = judged.id AND judged.is_stale AND NOT judged.is_reported AND 'stale' <> ALL (p.alerts)
    RETURNING p.id, p.name, p.fresh_as_of
), closed AS (
    UPDATE etl.etl_pipelines p SET alerts = array_remove(p.alerts, 'stale')
      FROM judged WHERE p.id = judged.id AND NOT judged.is_stale AND judged.is_reported AND 'stale' = ANY (p.alerts)
    RETURNING p.id, p.name, p.fresh_as_of,
              -- a pipeline that was disabled, or promises nothing any more, is not stale either, and its mart is as old as before
              CASE WHEN NOT p.enabled THEN 'disabled'
                   WHEN p.options ->> 'freshness' IS NULL AND p.schedule_interval IS NULL THEN 'no_promise'
                   ELSE 'fresh' END AS reason
)
INSERT INTO etl.etl_notifications (event, pipeline_id, pipeline, details)
SELECT 'stale', id, name, jsonb_build_object('fresh_as_of', fresh_as_of) FROM opened
 UNION ALL
SELECT 'recovery', id, name, jsonb_build_object('of', 'stale', 'fresh_as_of', fresh_as_of, 'reason', reason) FROM closed;

-- claim_notification --
-- The oldest message that is due, for one sender; until the given time has passed, the others do not see it
UPDATE etl.etl_notifications n
   SET attempts = n.attempts + 1, next_attempt_at = clock_timestamp() + %(hidden)s::interval
  FROM (SELECT number FROM etl.etl_notifications
         WHERE sent_at IS NULL AND next_attempt_at <= clock_timestamp()
           AND created_at > now() - %(max_age)s::interval AND event = ANY (%(events)s::text[])
         ORDER BY number LIMIT 1
           FOR UPDATE SKIP LOCKED) AS due
 WHERE n.number = due.number
RETURNING n.id, n.event, n.pipeline, n.details, n.created_at, n.attempts;

-- record_sent --
-- The receiver has accepted a message
UPDATE etl.etl_notifications SET sent_at = clock_timestamp(), last_error = NULL WHERE id = %(id)s;

-- record_unsent --
-- The receiver has not accepted a message; the next attempt follows after the delay
UPDATE etl.etl_notifications SET next_attempt_at = clock_timestamp() + %(delay)s::interval, last_error = %(reason)s
 WHERE id = %(id)s;

-- get_backlog --
-- Messages that are not sent yet
SELECT count(*) AS waiting, count(last_error) AS failing,
       (array_agg(last_error ORDER BY number DESC) FILTER (WHERE last_error IS NOT NULL))[1] AS last_error
  FROM etl.etl_notifications
 WHERE sent_at IS NULL AND created_at > now() - %(max_age)s::interval AND event = ANY (%(events)s::text[]);

-- prune_notifications --
-- Deletes messages that are too old, or more than are kept, the oldest first, at most `limit`
DELETE FROM etl.etl_notifications WHERE number IN (
    SELECT number FROM etl.etl_notifications
     WHERE created_at < now() - %(max_age)s::interval
        OR number <= (SELECT max(number) FROM etl.etl_notifications) - %(max_kept)s
     ORDER BY number LIMIT %(limit)s
       FOR UPDATE SKIP LOCKED);

-- list_failed --
-- Names of the enabled pipelines that are FAILED, in order
SELECT name FROM etl.etl_pipelines WHERE status = 'FAILED' AND enabled ORDER BY name;

-- notify --
-- Wakes up waiting runners early; polling does not depend on it
SELECT pg_notify('vitrine', %(name)s);

-- save_run_log --
-- Replaces the last log lines of a run, unless the run was deleted. The commit is not waited for
WITH fast AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true))
INSERT INTO etl.etl_run_logs (run_id, lines, dropped)
SELECT r.id, %(lines)s, %(dropped)s FROM fast, etl.etl_runs r WHERE r.id = %(run_id)s
    ON CONFLICT (run_id) DO UPDATE SET lines = excluded.lines, dropped = excluded.dropped, written_at = clock_timestamp();

-- get_run_log --
-- The last log lines of a run
SELECT lines, dropped FROM etl.etl_run_logs WHERE run_id = %(run_id)s;

-- list_valid_tokens --
-- Every token that may be used now, with the seconds until it expires
SELECT id, name, role, hash, extract(epoch FROM expires_at - now())::float8 AS seconds_left
  FROM etl.etl_tokens
 -- guarantee: H1
 WHERE revoked_at IS NULL AND expires_at > now();

-- has_tokens --
-- Whether a token was ever created, valid or not
SELECT EXISTS (SELECT FROM etl.etl_tokens) AS found;

-- record_token_use --
-- Notes that these tokens are in use, at most once a minute for each
UPDATE etl.etl_tokens
   SET last_used_at = date_trunc('minute', now())
 WHERE id = ANY(%(ids)s) AND (last_used_at IS NULL OR last_used_at < date_trunc('minute', now()));

-- insert_token --
-- Stores the hash of a new token; no row if a valid or expired token has the name
INSERT INTO etl.etl_tokens (name, role, hash, prefix, created_by, expires_at)
VALUES (%(name)s, %(role)s, %(hash)s, %(prefix)s, %(created_by)s, now() + %(ttl)s)
ON CONFLICT (name) WHERE revoked_at IS NULL DO NOTHING
RETURNING id, name, role, prefix, created_at, created_by, expires_at, last_used_at;

-- list_tokens --
-- One page of the tokens that are not revoked, expired ones included, in the order of their names
SELECT id, name, role, prefix, created_at, created_by, expires_at, last_used_at
  FROM etl.etl_tokens
 WHERE name > %(after)s AND revoked_at IS NULL
 ORDER BY name
 LIMIT %(limit)s;

-- revoke_token --
-- Ends the token that has this name; no row if there is none
UPDATE etl.etl_tokens SET revoked_at = now()
 WHERE name = %(name)s AND revoked_at IS NULL
RETURNING id, name, role, prefix, created_at, created_by, expires_at, last_used_at;

-- insert_audit --
-- Records a change, in the transaction of the change
INSERT INTO etl.etl_audit (actor, role, via, address, operation, pipeline, pipeline_id, before, after)
VALUES (%(actor)s, %(role)s, %(via)s, %(address)s, %(operation)s, %(pipeline)s, %(pipeline_id)s, %(before)s, %(after)s);

-- list_audit --
-- One page of the audit log, newest first
SELECT id, at, actor, role, via, address, operation, pipeline, pipeline_id, before, after
  FROM etl.etl_audit
 WHERE id < %(before)s
   AND (%(pipeline)s::text IS NULL OR pipeline = %(pipeline)s)
   AND (%(actor)s::text IS NULL OR actor = %(actor)s)
   AND (%(operation)s::text IS NULL OR operation = %(operation)s)
   AND (%(since)s::timestamptz IS NULL OR at >= %(since)s)
 ORDER BY id DESC
 LIMIT %(limit)s;

-- insert_session --
-- A browser has logged in to the console
INSERT INTO etl.etl_sessions (hash, token_id, expires_at) VALUES (%(hash)s, %(token_id)s, now() + %(idle)s::interval);

-- list_valid_sessions --
-- Those of the sessions that may be used now, with the seconds until they expire
SELECT s.hash, s.token_id, extract(epoch FROM least(s.expires_at, t.expires_at) - now())::float8 AS seconds_left
  FROM etl.etl_sessions s JOIN etl.etl_tokens t ON t.id = s.token_id
 WHERE s.hash = ANY (%(hashes)s::bytea[]) AND s.expires_at > now() AND t.revoked_at IS NULL AND t.expires_at > now();

-- record_session_use --
-- Notes that these sessions are in use, at most once a minute for each, and extends them
UPDATE etl.etl_sessions
   SET seen_at = date_trunc('minute', now()),
       expires_at = least(now() + %(idle)s::interval, created_at + %(longest)s::interval)
 WHERE hash = ANY (%(hashes)s::bytea[]) AND expires_at > now() AND seen_at < date_trunc('minute', now());

-- delete_session --
-- A browser has logged out
DELETE FROM etl.etl_sessions WHERE hash = %(hash)s;

-- prune_sessions --
-- Deletes sessions that cannot be used any more, at most `limit`
DELETE FROM etl.etl_sessions WHERE hash IN (
    SELECT s.hash FROM etl.etl_sessions s JOIN etl.etl_tokens t ON t.id = s.token_id
     WHERE s.expires_at <= now() OR t.revoked_at IS NOT NULL OR t.expires_at <= now()
     LIMIT %(limit)s
       FOR UPDATE OF s SKIP LOCKED);

-- count_states --
-- How many pipelines are in each status, failed, stale or disabled, of at most `limit` pipelines
SELECT count(*) AS pipelines,
       count(*) FILTER (WHERE p.status = 'IDLE') AS idle,
       count(*) FILTER (WHERE p.status = 'RUN_REQUESTED') AS run_requested,
       count(*) FILTER (WHERE p.status = 'RUNNING') AS running,
       count(*) FILTER (WHERE p.status = 'PAUSE_REQUESTED') AS pause_requested,
       count(*) FILTER (WHERE p.status = 'PAUSED') AS paused,
       count(*) FILTER (WHERE p.status = 'FAILED') AS failed,
       count(*) FILTER (WHERE NOT p.enabled) AS disabled,
       count(*) FILTER (WHERE
       -- include stale
       ) AS stale
  FROM (SELECT id, status, enabled, options, schedule_interval, fresh_as_of, created_at
          FROM etl.etl_pipelines LIMIT %(limit)s) AS p;

-- count_owners --
-- How many pipelines each owner has, and how many of them failed, run or are stale; the first owners in their order
SELECT p.owner AS name, count(*) AS pipelines, count(*) FILTER (WHERE p.status = 'FAILED') AS failed,
       count(*) FILTER (WHERE p.status IN ('RUNNING', 'PAUSE_REQUESTED')) AS running,
       count(*) FILTER (WHERE
       -- include stale
       ) AS stale
  FROM (SELECT * FROM etl.etl_pipelines LIMIT %(limit)s) AS p
 WHERE p.owner <> ''
 GROUP BY p.owner ORDER BY p.owner LIMIT %(groups)s;

-- count_tags --
-- The same by tag; a pipeline counts for each of its tags
SELECT tag AS name, count(*) AS pipelines, count(*) FILTER (WHERE p.status = 'FAILED') AS failed,
       count(*) FILTER (WHERE p.status IN ('RUNNING', 'PAUSE_REQUESTED')) AS running,
       count(*) FILTER (WHERE
       -- include stale
       ) AS stale
  FROM (SELECT * FROM etl.etl_pipelines LIMIT %(limit)s) AS p CROSS JOIN LATERAL unnest(p.tags) AS tag
 GROUP BY tag ORDER BY tag LIMIT %(groups)s;

-- list_sparklines --
-- Status, milliseconds and start of the newest runs of several pipelines, as arrays, newest first: as rows they would take
-- most of the time of a page. A pipeline without runs has nulls
SELECT p.id, r.statuses, r.milliseconds, r.started
  FROM unnest(%(ids)s::uuid[]) AS p(id)
 CROSS JOIN LATERAL (
       SELECT array_agg(n.status) AS statuses,
              array_agg((extract(epoch FROM coalesce(n.finished_at, clock_timestamp()) - n.started_at) * 1000)::int8)
                AS milliseconds,
              array_agg((extract(epoch FROM n.started_at) * 1000)::int8) AS started
         FROM (SELECT status, started_at, finished_at FROM etl.etl_runs
                WHERE pipeline_id = p.id ORDER BY id DESC LIMIT %(limit)s) AS n) AS r;

-- list_recent_runs --
-- The newest runs of several pipelines, in short, newest first
SELECT r.pipeline_id, r.id, r.kind, r.status, r.started_at, r.rows_read, r.rows_written,
       extract(epoch FROM coalesce(r.finished_at, clock_timestamp()) - r.started_at)::float8 AS seconds
  FROM unnest(%(ids)s::uuid[]) AS p(id)
 CROSS JOIN LATERAL (SELECT * FROM etl.etl_runs WHERE pipeline_id = p.id ORDER BY id DESC LIMIT %(limit)s) AS r
 ORDER BY r.pipeline_id, r.id DESC;

-- get_health --
-- Runners, the queue, active runs, and the pipeline whose checkpoint waits longest for an open transaction
SELECT (SELECT count(*) FROM etl.etl_runners WHERE seen_at > now() - %(within)s::interval) AS runners,
       (SELECT count(*) FROM (SELECT FROM etl.etl_pipelines WHERE status = 'RUN_REQUESTED' AND enabled
                               LIMIT %(limit)s) AS queued) AS waiting,
       (SELECT extract(epoch FROM clock_timestamp() - min(requested_at))::float8 FROM etl.etl_pipelines
         WHERE status = 'RUN_REQUESTED' AND enabled AND (next_attempt_at IS NULL OR next_attempt_at <= now())) AS oldest_wait,
       (SELECT count(*) FROM (SELECT FROM etl.etl_pipelines WHERE status IN ('RUNNING', 'PAUSE_REQUESTED')
                               LIMIT %(limit)s) AS active) AS running,
       held.name AS held_pipeline, held.lag AS horizon_lag, held.blocker AS horizon_blocker, clock_timestamp() AS now
  FROM (SELECT) AS one
  LEFT JOIN LATERAL (
       SELECT p.name, s.horizon_lag_seconds AS lag, s.horizon_blocker AS blocker
         FROM etl.etl_state s JOIN etl.etl_pipelines p ON p.id = s.pipeline_id
        WHERE s.horizon_blocker IS NOT NULL AND p.enabled
        ORDER BY s.horizon_lag_seconds DESC LIMIT 1) AS held ON true;

-- list_changes --
-- One page of the changes of a pipeline, newest first: who asked for them and which fields they concern, without values
SELECT id, at, actor, via, operation, ARRAY(SELECT jsonb_object_keys(coalesce(after, before, '{}')) ORDER BY 1) AS fields
  FROM etl.etl_audit WHERE pipeline = %(name)s AND id < %(before)s ORDER BY id DESC LIMIT %(limit)s;

-- get_lineage_version --
-- Another value after every change of a definition, of at most `limit` pipelines: lineage reads them again only then. The sum
-- does not depend on the order of the rows
SELECT count(*) AS pipelines,
       sum(hash_record_extended(ROW(p.id, p.created_at, p.config_version, p.name, p.source, p.target_table, p.enabled), 0)) AS hash
  FROM (SELECT id, created_at, config_version, name, source, target_table, enabled
          FROM etl.etl_pipelines ORDER BY name LIMIT %(limit)s) AS p;

-- list_lineage --
-- What every pipeline reads from and writes to, without the queries; at most `limit` pipelines
SELECT id, name, config_version, created_at, source, target_table, enabled
  FROM etl.etl_pipelines
 ORDER BY name
 LIMIT %(limit)s;

-- list_lineage_states --
-- The pipelines that are not idle or whose mart is late; at most `limit`
SELECT p.name, p.enabled, p.status,
       -- include stale
       AS stale
  FROM etl.etl_pipelines p
 WHERE p.status <> 'IDLE' OR
       -- include stale
 ORDER BY p.name
 LIMIT %(limit)s;

-- list_reading_steps --
-- The first step of each of these pipelines, which reads; of a pipeline without steps, its query and its Python task
SELECT p.id, p.config_version, t.task_type, t.body, t.source_table, p.source_query, p.python_task
  FROM etl.etl_pipelines p
  LEFT JOIN LATERAL (SELECT task_type, body, source_table FROM etl.etl_pipeline_tasks
                      WHERE pipeline_id = p.id ORDER BY order_index LIMIT 1) AS t ON true
 WHERE p.id = ANY (%(ids)s::uuid[]);

-- list_runners --
-- Runner processes, those seen last first
SELECT name, started_at, seen_at, seen_at > now() - %(within)s::interval AS is_alive
  FROM etl.etl_runners ORDER BY seen_at DESC, name LIMIT %(limit)s;

-- list_leases --
-- The pipelines that runners hold, oldest lease first, each with its run
SELECT p.name AS pipeline, p.status, p.source, p.lease_owner AS runner, p.lease_expires_at AS expires_at,
       p.heartbeat_at, p.lease_expires_at < clock_timestamp() AS is_expired,
       r.id AS run_id, r.kind, r.started_at, r.rows_read, r.rows_expected
  FROM etl.etl_pipelines p
  LEFT JOIN LATERAL (SELECT id, kind, started_at, rows_read, rows_expected FROM etl.etl_runs
                      WHERE pipeline_id = p.id AND status = 'RUNNING') AS r ON true
 WHERE p.status IN ('RUNNING', 'PAUSE_REQUESTED')
 ORDER BY r.started_at NULLS FIRST, p.name LIMIT %(limit)s;

-- count_sources --
-- How many pipelines of each source run, and how many wait
SELECT p.source AS name, count(*) FILTER (WHERE p.status IN ('RUNNING', 'PAUSE_REQUESTED')) AS running,
       count(*) FILTER (WHERE p.status = 'RUN_REQUESTED' AND p.enabled) AS waiting
  FROM (SELECT source, status, enabled FROM etl.etl_pipelines
         WHERE status IN ('RUNNING', 'PAUSE_REQUESTED', 'RUN_REQUESTED') LIMIT %(limit)s) AS p
 GROUP BY p.source ORDER BY p.source;
