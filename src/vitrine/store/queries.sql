-- Statements on the store's own tables, each with a name and a sentence. All times come from the database's clock.
-- SQL that several statements share is a fragment; a line `include NAME` in a comment of its own is replaced by its text.

-- fragment fence --
-- The pipeline row while the lease is ours, locked until the transaction ends: no other runner can take the pipeline
held AS (
    SELECT status, reload_version FROM etl.etl_pipelines WHERE id = %(id)s AND lease_token = %(token)s FOR SHARE
)

-- fragment tasks --
-- Select list: the steps of pipeline p as JSON, in order
(SELECT coalesce(jsonb_agg(to_jsonb(t) - 'id' - 'pipeline_id' ORDER BY t.order_index), '[]')
   FROM etl.etl_pipeline_tasks t WHERE t.pipeline_id = p.id) AS tasks

-- fragment elapsed --
-- Select list: the seconds that a run has taken so far
extract(epoch FROM coalesce(finished_at, clock_timestamp()) - started_at)::float8 AS elapsed

-- get_pipeline --
-- One pipeline by id or by name
SELECT p.*,
       -- include tasks
  FROM etl.etl_pipelines p
 WHERE p.id = %(id)s::uuid OR p.name = %(name)s;

-- lock_pipeline --
-- The same, held against every other change until the transaction ends
SELECT p.*,
       -- include tasks
  FROM etl.etl_pipelines p
 WHERE p.id = %(id)s::uuid OR p.name = %(name)s
   FOR UPDATE OF p;

-- list_pipelines --
-- Pipelines by name, one page after the name given
SELECT p.*,
       -- include tasks
  FROM etl.etl_pipelines p
 WHERE p.name > %(after)s
 ORDER BY p.name
 LIMIT %(limit)s;

-- insert_pipeline --
-- A new pipeline, IDLE
INSERT INTO etl.etl_pipelines (id, name, description, type, source_type, source, source_query, python_task,
       target_table, mode, incremental_key, incremental_id_key, key_columns, batch_size, enabled, schedule_interval,
       next_due_at, options)
VALUES (coalesce(%(id)s, gen_random_uuid()), %(name)s, %(description)s, %(type)s, %(source_type)s, %(source)s,
       %(source_query)s, %(python_task)s, %(target_table)s, %(mode)s, %(incremental_key)s, %(incremental_id_key)s,
       %(key_columns)s, %(batch_size)s, %(enabled)s, %(schedule_interval)s,
       %(next_due_at)s, %(options)s)
RETURNING id;

-- update_pipeline --
-- A changed definition; another schedule, or one that is enabled again, gets a fresh due time, and disabling a RUNNING
-- pipeline fires `pause` in the same statement
UPDATE etl.etl_pipelines
   SET name = %(name)s, description = %(description)s, type = %(type)s, source_type = %(source_type)s,
       source = %(source)s, source_query = %(source_query)s, python_task = %(python_task)s,
       target_table = %(target_table)s, mode = %(mode)s, incremental_key = %(incremental_key)s,
       incremental_id_key = %(incremental_id_key)s, key_columns = %(key_columns)s, batch_size = %(batch_size)s,
       enabled = %(enabled)s, options = %(options)s,
       next_due_at = CASE WHEN (enabled, schedule_interval) IS DISTINCT FROM (%(enabled)s, %(schedule_interval)s::text)
                          THEN %(next_due_at)s ELSE next_due_at END,
       schedule_interval = %(schedule_interval)s,
       fresh_as_of = CASE WHEN target_table = %(target_table)s THEN fresh_as_of END,
       status = CASE WHEN enabled AND NOT %(enabled)s AND status = 'RUNNING' THEN 'PAUSE_REQUESTED' ELSE status END,
       config_version = config_version + 1, updated_at = now()
 WHERE id = %(id)s
RETURNING id;

-- delete_steps --
-- Every step of a pipeline, before its new ones are inserted
DELETE FROM etl.etl_pipeline_tasks WHERE pipeline_id = %(id)s;

-- insert_step --
-- One step of a task plan
INSERT INTO etl.etl_pipeline_tasks (pipeline_id, order_index, task_type, body, source_table, target_table, options)
VALUES (%(id)s, %(order_index)s, %(task_type)s, %(body)s, %(source_table)s, %(target_table)s, %(options)s);

-- delete_pipeline --
-- A pipeline with its steps, state and history, unless somebody holds it; by force even then
DELETE FROM etl.etl_pipelines WHERE id = %(id)s AND (lease_token IS NULL OR %(force)s) RETURNING id;

-- request_run --
-- `run`: a waiting or paused request keeps its id; while RUNNING, one more run is noted under an id of its own
UPDATE etl.etl_pipelines p
   SET status = step.new,
       request_id = CASE WHEN step.old IN ('IDLE', 'FAILED', 'PAUSED')
                         THEN coalesce(p.request_id, p.rerun_request_id, gen_random_uuid()) ELSE p.request_id END,
       rerun = CASE WHEN step.old = 'RUNNING' THEN true
                    WHEN step.old IN ('IDLE', 'FAILED', 'PAUSED') THEN p.rerun AND p.request_id IS NOT NULL
                    ELSE p.rerun END,
       rerun_request_id = CASE WHEN step.old = 'RUNNING' THEN coalesce(p.rerun_request_id, gen_random_uuid())
                               WHEN step.old IN ('IDLE', 'FAILED', 'PAUSED') AND p.request_id IS NULL THEN NULL
                               ELSE p.rerun_request_id END,
       requested_at = CASE WHEN step.old IN ('IDLE', 'FAILED', 'PAUSED') THEN now() ELSE p.requested_at END,
       requested_options = CASE WHEN step.old = 'PAUSE_REQUESTED' THEN p.requested_options ELSE %(options)s END,
       requested_trigger = CASE WHEN step.old IN ('IDLE', 'FAILED', 'PAUSED') THEN %(trigger)s
                                ELSE p.requested_trigger END,
       requested_due_at = CASE WHEN step.old IN ('IDLE', 'FAILED', 'PAUSED') AND p.request_id IS NULL THEN NULL
                               ELSE p.requested_due_at END,
       attempt = CASE WHEN step.old IN ('IDLE', 'FAILED', 'PAUSED') THEN 0 ELSE p.attempt END,
       next_attempt_at = CASE WHEN step.old IN ('IDLE', 'FAILED', 'PAUSED') THEN NULL ELSE p.next_attempt_at END,
       updated_at = now()
  FROM unnest(%(old)s::text[], %(new)s::text[]) AS step(old, new)
 WHERE p.id = %(id)s AND p.status = step.old AND p.enabled
RETURNING p.status, CASE WHEN step.old = 'RUNNING' THEN p.rerun_request_id ELSE p.request_id END AS request_id;

-- request_pause --
-- `pause`: at once where nobody runs it, and attempts that were still to come are dropped; else between two batches
UPDATE etl.etl_pipelines p
   SET status = step.new, updated_at = now(),
       attempt = CASE WHEN step.new = 'PAUSED' THEN 0 ELSE p.attempt END,
       next_attempt_at = CASE WHEN step.new = 'PAUSED' THEN NULL ELSE p.next_attempt_at END
  FROM unnest(%(old)s::text[], %(new)s::text[]) AS step(old, new)
 WHERE p.id = %(id)s AND p.status = step.old
RETURNING p.status;

-- clock --
-- What time it is
SELECT clock_timestamp() AS now;

-- list_due --
-- Due times that have come, the oldest first
SELECT id, schedule_interval, next_due_at, now() AS now FROM etl.etl_pipelines
 WHERE enabled AND next_due_at <= now() ORDER BY next_due_at LIMIT %(limit)s;

-- fire_schedules --
-- Every due time is consumed once, whoever comes first: one that is not there any more, or is being consumed by another
-- runner, is passed over. It starts a run only where the status allows one
UPDATE etl.etl_pipelines p
   SET next_due_at = due.following,
       status = coalesce(step.new, p.status),
       request_id = CASE WHEN step.new IS NULL THEN p.request_id ELSE gen_random_uuid() END,
       requested_at = CASE WHEN step.new IS NULL THEN p.requested_at ELSE now() END,
       requested_options = CASE WHEN step.new IS NULL THEN p.requested_options ELSE '{}' END,
       requested_trigger = CASE WHEN step.new IS NULL THEN p.requested_trigger ELSE 'schedule' END,
       requested_due_at = CASE WHEN step.new IS NULL THEN p.requested_due_at ELSE due.next_due_at END,
       attempt = CASE WHEN step.new IS NULL THEN p.attempt ELSE 0 END,
       next_attempt_at = CASE WHEN step.new IS NULL THEN p.next_attempt_at END
  FROM (SELECT s.id, s.status, s.next_due_at, seen.following FROM etl.etl_pipelines s
          JOIN unnest(%(ids)s::uuid[], %(due)s::timestamptz[], %(following)s::timestamptz[]) AS seen(id, due, following)
            ON seen.id = s.id AND seen.due = s.next_due_at
         WHERE s.enabled ORDER BY s.id FOR UPDATE OF s SKIP LOCKED) AS due
  LEFT JOIN unnest(%(old)s::text[], %(new)s::text[]) AS step(old, new) ON step.old = due.status
 WHERE p.id = due.id
RETURNING p.name, p.status;

-- seconds_until_due --
-- How long until the next due time; NULL where nothing is scheduled
SELECT extract(epoch FROM next_due_at - clock_timestamp())::float8 AS seconds FROM etl.etl_pipelines
 WHERE enabled AND next_due_at IS NOT NULL ORDER BY next_due_at LIMIT 1;

-- expire_leases --
-- A dead lease: back to the queue (or PAUSED); FAILED when this attempt made no progress and was the last allowed.
-- The attempt is not charged to a run outside user code if one inside died, or is dying, with the same process.
WITH expired AS (
    SELECT p.id, p.lease_token, p.status, p.attempt, coalesce(r.moved, false) AS moved,
           coalesce(r.in_user_code, true) OR NOT EXISTS (
               SELECT FROM etl.etl_runs s
                WHERE s.in_user_code AND s.runner = r.runner AND s.id <> r.id
                  AND (s.status = 'RUNNING'
                       OR s.error_code IN ('LEASE_EXPIRED', 'CRASH_LOOP') AND s.finished_at > r.started_at)) AS charged
      FROM etl.etl_pipelines p
      LEFT JOIN etl.etl_runs r ON r.pipeline_id = p.id AND r.status = 'RUNNING'
     WHERE p.status IN ('RUNNING', 'PAUSE_REQUESTED') AND p.lease_expires_at < clock_timestamp()
       FOR UPDATE OF p SKIP LOCKED
), dead AS (
    SELECT *, status = 'RUNNING' AND charged AND NOT moved AND attempt >= %(max_attempts)s AS crash_loop FROM expired
), freed AS (
    UPDATE etl.etl_pipelines p
       SET status = step.new, lease_token = NULL, lease_owner = NULL, lease_expires_at = NULL,
           attempt = CASE WHEN dead.moved OR step.new IN ('FAILED', 'PAUSED') THEN 0
                          WHEN dead.charged THEN p.attempt ELSE greatest(p.attempt - 1, 0) END,
           request_id = CASE WHEN step.new = 'FAILED' THEN NULL ELSE p.request_id END, updated_at = now()
      FROM dead
      JOIN unnest(%(event)s::text[], %(old)s::text[], %(new)s::text[]) AS step(event, old, new)
        ON step.event = CASE WHEN dead.crash_loop THEN 'crash_loop' ELSE 'expire' END
     WHERE p.id = dead.id AND p.lease_token = dead.lease_token AND p.status = step.old
    RETURNING p.id, p.name, p.status, dead.lease_token, dead.crash_loop
), closed AS (
    UPDATE etl.etl_runs r
       SET status = 'ABANDONED', finished_at = clock_timestamp(),
           error_code = CASE WHEN freed.crash_loop THEN 'CRASH_LOOP' ELSE 'LEASE_EXPIRED' END,
           error_message = CASE WHEN freed.crash_loop
               THEN 'the runner died three times in a row without getting on; look at its logs, then run again'
               ELSE 'the runner stopped sending heartbeats; the next run continues from the checkpoint' END
      FROM freed WHERE r.pipeline_id = freed.id AND r.status = 'RUNNING'
)
SELECT * FROM freed;

-- terminate_sessions --
-- End the sessions of a lost holder: a stopped process in the middle of a COPY counts as active, no timeout ends it
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
 WHERE split_part(application_name, ':', 1) = 'vitrine' AND split_part(application_name, ':', 2) = %(token)s::text
   AND pg_has_role(usesysid, 'USAGE') AND pid <> pg_backend_pid();

-- cancel_queries --
-- End what reader and writer of a run wait for, and leave their sessions alone
SELECT pg_cancel_backend(pid) FROM pg_stat_activity
 WHERE application_name = 'vitrine:' || %(token)s::text
   AND pg_has_role(usesysid, 'USAGE') AND pid <> pg_backend_pid();

-- hold_limits --
-- Claims that count the runs of a source take turns, or two of them could take its last place
SELECT pg_advisory_xact_lock(hashtextextended('vitrine.source_connections', 0));

-- list_crowded --
-- Sources that have as many runs as they allow
SELECT p.source FROM etl.etl_pipelines p
  JOIN unnest(%(sources)s::text[], %(runs)s::integer[]) AS allowed(source, runs) USING (source)
 WHERE p.status IN ('RUNNING', 'PAUSE_REQUESTED')
 GROUP BY p.source, allowed.runs HAVING count(*) >= allowed.runs;

-- claim_next --
-- Take the oldest requested pipeline, of a source that is not crowded, that no other runner is taking at this moment
UPDATE etl.etl_pipelines p
   SET status = step.new, lease_token = nextval('etl.fencing_seq'), lease_owner = %(runner)s,
       lease_expires_at = clock_timestamp() + %(ttl)s::interval, heartbeat_at = clock_timestamp(),
       attempt = p.attempt + 1, next_attempt_at = NULL, reload_version = NULL, updated_at = now()
  FROM unnest(%(old)s::text[], %(new)s::text[]) AS step(old, new)
 WHERE p.id = (SELECT id FROM etl.etl_pipelines
                WHERE status = 'RUN_REQUESTED' AND enabled
                  AND (next_attempt_at IS NULL OR next_attempt_at <= now())
                  AND (%(only)s::uuid IS NULL OR id = %(only)s::uuid)
                  AND source <> ALL (%(crowded)s::text[])
                ORDER BY requested_at, id LIMIT 1
                  FOR UPDATE SKIP LOCKED)
   AND p.status = step.old
RETURNING p.*,
       -- include tasks
;

-- request_reload --
-- The run under way shall take the pace as it is stored now; no row back: nobody runs it
UPDATE etl.etl_pipelines SET reload_version = config_version
 WHERE id = %(id)s AND lease_token IS NOT NULL
RETURNING config_version;

-- running_config --
-- The configuration that the run under way captured
SELECT config FROM etl.etl_runs WHERE pipeline_id = %(id)s AND status = 'RUNNING';

-- note_config --
-- A run under way goes on with another pace
UPDATE etl.etl_runs SET config = %(config)s WHERE id = %(run_id)s AND status = 'RUNNING';

-- glance --
-- What a run that rests should know; no row back: the pipeline is not its own any more
SELECT status, reload_version FROM etl.etl_pipelines WHERE id = %(id)s AND lease_token = %(token)s;

-- open_run --
-- The attempt's row of history, with the configuration it captured
INSERT INTO etl.etl_runs (pipeline_id, request_id, attempt, trigger, due_at, kind, config, runner, lease_token)
VALUES (%(pipeline_id)s, %(request_id)s, %(attempt)s, %(trigger)s, %(due_at)s, %(kind)s, %(config)s, %(runner)s,
       %(token)s)
RETURNING id;

-- heartbeat --
-- Prolong a live lease; no row back means it is lost, and an expired one never revives itself
UPDATE etl.etl_pipelines
   SET lease_expires_at = clock_timestamp() + %(ttl)s::interval, heartbeat_at = clock_timestamp()
 WHERE id = %(id)s AND lease_token = %(token)s AND lease_expires_at > clock_timestamp()
RETURNING status;

-- held_status --
-- What has become of a lease; no row back means it is somebody else's
SELECT status FROM etl.etl_pipelines WHERE id = %(id)s AND lease_token = %(token)s;

-- leave --
-- The holder lets go: one event, guarded by the token; `finish` with a noted rerun goes back to the queue, and tells
-- how fresh the mart is: as the source was when its read began, which for a load may be some runs ago. A generation that is
-- newer than the mart was until now is the one that this run has applied
UPDATE etl.etl_pipelines p
   SET status = CASE WHEN step.again AND p.rerun THEN 'RUN_REQUESTED' ELSE step.new END,
       lease_token = NULL, lease_owner = NULL, lease_expires_at = NULL,
       request_id = CASE WHEN step.again AND p.rerun THEN p.rerun_request_id
                         WHEN %(event)s IN ('finish', 'fail') THEN NULL ELSE p.request_id END,
       requested_at = CASE WHEN step.again AND p.rerun THEN now() ELSE p.requested_at END,
       requested_options = CASE WHEN %(event)s IN ('finish', 'fail') AND NOT p.rerun THEN '{}'
                                ELSE p.requested_options END,
       requested_trigger = CASE WHEN step.again AND p.rerun THEN 'api' ELSE p.requested_trigger END,
       requested_due_at = CASE WHEN %(event)s IN ('finish', 'fail') THEN NULL ELSE p.requested_due_at END,
       rerun = p.rerun AND NOT step.again,
       rerun_request_id = CASE WHEN NOT step.again THEN p.rerun_request_id END,
       attempt = CASE WHEN %(event)s = 'retry' AND step.new = 'RUN_REQUESTED' THEN %(attempt)s
                      WHEN %(event)s = 'release' THEN greatest(p.attempt - 1, 0) ELSE 0 END,
       next_attempt_at = CASE WHEN %(event)s = 'retry' AND step.new = 'RUN_REQUESTED'
                              THEN clock_timestamp() + %(delay)s::interval END,
       fresh_as_of = CASE WHEN %(event)s = 'finish'
                          THEN (SELECT CASE WHEN r.kind NOT IN ('full', 'incremental') THEN p.fresh_as_of
                                              WHEN s.generation_started_at > coalesce(p.fresh_as_of, '-infinity')
                                              THEN s.generation_started_at ELSE r.started_at END
                                  FROM etl.etl_runs r JOIN etl.etl_state s USING (pipeline_id)
                                 WHERE r.pipeline_id = p.id AND r.status = 'RUNNING')
                          ELSE p.fresh_as_of END,
       updated_at = now()
  FROM (SELECT old, new, %(event)s = 'finish' AND old = 'RUNNING' AS again
          FROM unnest(%(old)s::text[], %(new)s::text[]) AS pairs(old, new)) AS step
 WHERE p.id = %(id)s AND p.lease_token = %(token)s AND p.status = step.old
RETURNING p.status;

-- close_run --
-- The end of an attempt
UPDATE etl.etl_runs
   SET status = %(status)s, finished_at = clock_timestamp(), error_code = %(error_code)s,
       error_message = left(%(error_message)s, 2000)
 WHERE id = %(run_id)s AND status = 'RUNNING';

-- enter_user_code --
-- From here on user code may kill the process
UPDATE etl.etl_runs SET in_user_code = true WHERE id = %(run_id)s;

-- describe_run --
-- How the run goes about it: its lane, and the planner's estimate for progress
UPDATE etl.etl_runs SET rows_expected = %(rows)s, lane = %(lane)s WHERE id = %(run_id)s;

-- hold_lease --
-- Fence: nobody takes the pipeline over before this transaction ends; no row back means it is not mine (ETL01)
WITH
-- include fence
SELECT status FROM held;

-- get_state --
-- What is remembered of a pipeline's reads
SELECT * FROM etl.etl_state WHERE pipeline_id = %(id)s;

-- open_state --
-- The state a run starts from, made on the first run
INSERT INTO etl.etl_state (pipeline_id, lease_token) VALUES (%(id)s, %(token)s)
    ON CONFLICT (pipeline_id) DO UPDATE SET lease_token = %(token)s
RETURNING *, generation_started_at < clock_timestamp() - %(max_staging_age)s::interval AS generation_is_old;

-- note_horizon --
-- What held the checkpoint back in the last run; nothing is written while nothing does
UPDATE etl.etl_state SET horizon_lag_seconds = %(lag)s, horizon_blocker = %(blocker)s
 WHERE pipeline_id = %(id)s AND lease_token = %(token)s
   AND (horizon_lag_seconds, horizon_blocker) IS DISTINCT FROM (%(lag)s::float8, %(blocker)s::text);

-- list_staging --
-- Staging tables by a pattern of their name
SELECT relname::text AS name FROM pg_class
 WHERE relnamespace = 'etl'::regnamespace AND relkind = 'r' AND relname ~ %(pattern)s;

-- open_generation --
-- A new full load: the next staging table, nothing read yet
UPDATE etl.etl_state
   SET generation = generation + 1, generation_open = true, generation_cursor = NULL, generation_rows = 0,
       generation_started_at = clock_timestamp(), generation_fingerprint = %(fingerprint)s,
       generation_horizon = %(horizon)s, batch_seq = batch_seq + 1, updated_at = now()
 WHERE pipeline_id = %(id)s AND batch_seq = %(batch_seq)s
RETURNING *;

-- save_cursor --
-- Fence, checkpoint and counts of an incremental batch, in the transaction of its rows. No row back: the pipeline is
-- not mine (ETL01), and nobody takes it over before this transaction ends; no batch_seq: the checkpoint was moved (ETL02)
WITH
-- include fence
, saved AS (
    UPDATE etl.etl_state
       SET cursor = %(cursor)s, pending_cursor = %(pending_cursor)s, pending_since = %(pending_since)s,
           cursor_fingerprint = %(fingerprint)s, batch_seq = batch_seq + 1, lease_token = %(token)s, updated_at = now()
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

-- save_generation --
-- The same for a staged batch
WITH
-- include fence
, saved AS (
    UPDATE etl.etl_state
       SET generation_cursor = %(cursor)s, generation_rows = generation_rows + %(read)s - %(rejected)s,
           batch_seq = batch_seq + 1, lease_token = %(token)s, updated_at = now()
     WHERE pipeline_id = %(id)s AND batch_seq = %(batch_seq)s AND generation_open AND EXISTS (SELECT FROM held)
    RETURNING batch_seq
), counted AS (
    UPDATE etl.etl_runs
       SET rows_read = rows_read + %(read)s, rows_rejected = rows_rejected + %(rejected)s,
           rows_repeated = rows_repeated + %(repeated)s, moved = moved OR %(moves)s,
           batches = batches + %(batches)s, slowest_batch_seconds = greatest(slowest_batch_seconds, %(seconds)s)
      FROM saved WHERE id = %(run_id)s
)
SELECT held.status, held.reload_version, saved.batch_seq FROM held LEFT JOIN saved ON true;

-- save_progress --
-- The same for a batch that leaves no checkpoint: what changed while a full load was read
WITH
-- include fence
, saved AS (
    UPDATE etl.etl_state
       SET batch_seq = batch_seq + 1, lease_token = %(token)s, updated_at = now()
     WHERE pipeline_id = %(id)s AND batch_seq = %(batch_seq)s AND EXISTS (SELECT FROM held)
    RETURNING batch_seq
), counted AS (
    UPDATE etl.etl_runs
       SET rows_read = rows_read + %(read)s, rows_written = rows_written + %(written)s,
           rows_rejected = rows_rejected + %(rejected)s,
           rows_repeated = rows_repeated + %(repeated)s, moved = moved OR %(moves)s, batches = batches + %(batches)s,
           slowest_batch_seconds = greatest(slowest_batch_seconds, %(seconds)s)
      FROM saved WHERE id = %(run_id)s
)
SELECT held.status, held.reload_version, saved.batch_seq FROM held LEFT JOIN saved ON true;

-- close_generation --
-- The same for a load that is applied; its staging is no longer wanted. The first load of an incremental pipeline leaves
-- its first checkpoint
WITH
-- include fence
, saved AS (
    UPDATE etl.etl_state
       SET generation_open = false, generation_cursor = NULL, generation_rows = 0,
           cursor = coalesce(%(cursor)s, cursor), cursor_fingerprint = coalesce(%(fingerprint)s, cursor_fingerprint),
           batch_seq = batch_seq + 1, lease_token = %(token)s, updated_at = now()
     WHERE pipeline_id = %(id)s AND batch_seq = %(batch_seq)s AND generation_open AND EXISTS (SELECT FROM held)
    RETURNING batch_seq
), counted AS (
    UPDATE etl.etl_runs
       SET rows_written = rows_written + %(written)s, rows_deleted = rows_deleted + %(deleted)s,
           rows_rejected = rows_rejected + %(rejected)s,
           rows_repeated = rows_repeated + %(repeated)s, moved = moved OR %(moves)s
      FROM saved WHERE id = %(run_id)s
)
SELECT held.status, held.reload_version, saved.batch_seq FROM held LEFT JOIN saved ON true;

-- is_saved --
-- Whether a commit whose answer was lost took place: the checkpoint has moved, and it was me
SELECT batch_seq FROM etl.etl_state
 WHERE pipeline_id = %(id)s AND batch_seq = %(batch_seq)s AND lease_token = %(token)s;

-- insert_reject --
-- A row put aside; a later version of it that does not fit either takes its place
INSERT INTO etl.etl_rejects (pipeline_id, run_id, key, column_name, sqlstate, reason, row)
VALUES (%(id)s, %(run_id)s, %(key)s, %(column)s, %(sqlstate)s, %(reason)s, %(row)s::jsonb)
    ON CONFLICT (pipeline_id, key) WHERE closed_at IS NULL
    DO UPDATE SET run_id = excluded.run_id, column_name = excluded.column_name, sqlstate = excluded.sqlstate,
                  reason = excluded.reason, row = excluded.row, created_at = now();

-- close_rejects --
-- Rows put aside whose newer version was written
UPDATE etl.etl_rejects SET closed_at = now()
 WHERE pipeline_id = %(id)s AND closed_at IS NULL AND key = ANY (%(keys)s);

-- open_reject_keys --
-- Keys that wait in quarantine
SELECT key FROM etl.etl_rejects WHERE pipeline_id = %(id)s AND closed_at IS NULL;

-- list_rejects --
-- What waits in quarantine, oldest first
SELECT id, run_id, key, column_name, sqlstate, reason, row, created_at FROM etl.etl_rejects
 WHERE pipeline_id = %(id)s AND closed_at IS NULL ORDER BY id LIMIT %(limit)s;

-- list_orphan_staging --
-- Staging tables whose pipeline is gone, or whose load is over
SELECT c.relname::text AS name FROM pg_class c
 WHERE c.relnamespace = 'etl'::regnamespace AND c.relkind = 'r' AND c.relname ~ '^stage_[0-9a-f]{32}_g[0-9]+$'
   AND NOT EXISTS (SELECT FROM etl.etl_state s
                    WHERE s.generation_open
                      AND c.relname = 'stage_' || replace(s.pipeline_id::text, '-', '') || '_g' || s.generation);

-- reset_state --
-- Forget what was read; the generation number stays, so that a staging name is never used twice
UPDATE etl.etl_state
   SET cursor = NULL, pending_cursor = NULL, pending_since = NULL, cursor_fingerprint = NULL, generation_open = false,
       generation_cursor = NULL, generation_rows = 0, batch_seq = batch_seq + 1, updated_at = now()
 WHERE pipeline_id = %(id)s;

-- list_runs --
-- History of a pipeline, newest first
SELECT *,
       -- include elapsed
  FROM etl.etl_runs WHERE pipeline_id = %(id)s AND id < %(before)s ORDER BY id DESC LIMIT %(limit)s;

-- last_run_of_request --
-- The newest attempt of a request
SELECT *,
       -- include elapsed
  FROM etl.etl_runs WHERE request_id = %(request_id)s ORDER BY id DESC LIMIT 1;

-- pipeline_of_request --
-- The pipeline a request is still waiting, running or paused in
SELECT id, name, status, request_id = %(request_id)s AS current FROM etl.etl_pipelines
 WHERE request_id = %(request_id)s OR rerun_request_id = %(request_id)s;

-- get_run --
-- One attempt
SELECT *,
       -- include elapsed
  FROM etl.etl_runs WHERE id = %(run_id)s;

-- prune_old_runs --
-- History beyond its age, the oldest first, some at a time; the newest run of a pipeline and its newest success stay
DELETE FROM etl.etl_runs WHERE id IN (
    SELECT r.id FROM etl.etl_runs r
     WHERE r.finished_at < now() - %(max_age)s::interval
       AND EXISTS (SELECT FROM etl.etl_runs n WHERE n.pipeline_id = r.pipeline_id AND n.id > r.id)
       AND (r.status <> 'SUCCESS' OR EXISTS (SELECT FROM etl.etl_runs n WHERE n.pipeline_id = r.pipeline_id
                                                AND n.id > r.id AND n.status = 'SUCCESS'))
     ORDER BY r.finished_at LIMIT %(limit)s
       FOR UPDATE OF r SKIP LOCKED);

-- prune_excess_runs --
-- History beyond its number per pipeline, some at a time; the newest success stays
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

-- runner_alive --
-- A runner process says that it is there
INSERT INTO etl.etl_runners (name) VALUES (%(name)s) ON CONFLICT (name) DO UPDATE SET seen_at = now();

-- runner_gone --
-- A runner process leaves; those that were killed are forgotten after a day
DELETE FROM etl.etl_runners WHERE name = %(name)s OR seen_at < now() - interval '1 day';

-- count_live_runners --
-- Runner processes seen within the time given
SELECT count(*) AS alive FROM etl.etl_runners WHERE seen_at > now() - %(within)s::interval;

-- watch_pipelines --
-- What is watched of every pipeline, by the database's clock
SELECT p.name, p.enabled, p.status,
       extract(epoch FROM clock_timestamp() - p.fresh_as_of)::float8 AS mart_age,
       CASE WHEN p.status IN ('RUNNING', 'PAUSE_REQUESTED')
            THEN extract(epoch FROM clock_timestamp() - p.heartbeat_at)::float8 END AS heartbeat_age,
       CASE WHEN p.status = 'RUN_REQUESTED' AND p.enabled AND coalesce(p.next_attempt_at, p.requested_at) <= now()
            THEN extract(epoch FROM clock_timestamp() - coalesce(p.next_attempt_at, p.requested_at))::float8
            END AS waiting,
       CASE WHEN p.schedule_interval ~ '^[0-9]+[smhd]$'
            THEN extract(epoch FROM p.schedule_interval::interval)::float8 END AS schedule,
       s.horizon_lag_seconds AS horizon_lag
  FROM etl.etl_pipelines p LEFT JOIN etl.etl_state s ON s.pipeline_id = p.id
 ORDER BY p.name;

-- notify --
-- Shorten a runner's wait; polling remains the truth
SELECT pg_notify('vitrine', %(name)s);

-- list_with_newest_run --
-- Every pipeline in the order of names, with what a list shows of it and of its newest run
SELECT p.name, p.status, p.enabled, p.mode, p.target_table, p.schedule_interval, p.next_due_at,
       r.status AS run_status, r.rows_read, extract(epoch FROM r.finished_at - r.started_at)::float8 AS seconds
  FROM etl.etl_pipelines p
  LEFT JOIN LATERAL (SELECT status, rows_read, started_at, finished_at
                       FROM etl.etl_runs WHERE pipeline_id = p.id ORDER BY id DESC LIMIT 1) r ON true
 ORDER BY p.name;
