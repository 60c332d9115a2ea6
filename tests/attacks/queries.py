"""The attack set: queries that must be refused, by class, with the code of the refusal."""

FILMS = "content.film_work"

SLEEP = "pg_sleep(1)"

POSITIONS: dict[str, str] = {
    "select list": "SELECT {}",
    "where": f"SELECT 1 FROM {FILMS} WHERE {{}} IS NULL",
    "having": f"SELECT count(*) FROM {FILMS} HAVING {{}} IS NULL",
    "order by": f"SELECT 1 FROM {FILMS} ORDER BY {{}}",
    "limit": "SELECT 1 LIMIT {}",
    "offset": "SELECT 1 OFFSET {}",
    "join on": f"SELECT 1 FROM {FILMS} a JOIN {FILMS} b ON {{}} IS NULL",
    "values": "VALUES ({})",
    "values in from": "SELECT * FROM (VALUES (1, {})) v",
    "function in from": "SELECT * FROM {}",
    "lateral function": f"SELECT * FROM {FILMS}, LATERAL {{}}",
    "lateral subquery": f"SELECT * FROM {FILMS}, LATERAL (SELECT {{}}) s",
    "rows from": "SELECT * FROM ROWS FROM (generate_series(1, 2), {})",
    "argument of a function in from": "SELECT * FROM generate_subscripts(ARRAY[1], {})",
    "argument": "SELECT lower({})",
    "named argument": "SELECT make_interval(days => {})",
    "variadic argument": "SELECT concat(VARIADIC ARRAY[{}])",
    "filter": "SELECT count(*) FILTER (WHERE {} IS NULL)",
    "over partition": "SELECT count(*) OVER (PARTITION BY {})",
    "over order": "SELECT count(*) OVER (ORDER BY {})",
    "window frame": "SELECT count(*) OVER (ROWS BETWEEN {} PRECEDING AND CURRENT ROW)",
    "window frame end": "SELECT count(*) OVER (ROWS BETWEEN CURRENT ROW AND {} FOLLOWING)",
    "window clause": "SELECT 1 WINDOW w AS (ORDER BY {})",
    "order in aggregate": f"SELECT array_agg(id ORDER BY {{}}) FROM {FILMS}",
    "within group": "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY {})",
    "case condition": "SELECT CASE WHEN {} IS NULL THEN 1 END",
    "case subject": "SELECT CASE {} WHEN 1 THEN 1 END",
    "case result": "SELECT CASE WHEN true THEN {} END",
    "case else": "SELECT CASE WHEN true THEN 1 ELSE {} END",
    "array": "SELECT ARRAY[1, {}]",
    "array subquery": "SELECT ARRAY(SELECT {})",
    "subscript": f"SELECT tags[{{}}] FROM {FILMS}",
    "slice": f"SELECT tags[1:{{}}] FROM {FILMS}",
    "cte": "WITH a AS (SELECT {}) SELECT 1",
    "unused nested cte": "SELECT (WITH a AS (SELECT {}) SELECT 1)",
    "scalar subquery": "SELECT (SELECT {})",
    "from subquery": "SELECT 1 FROM (SELECT {}) s",
    "exists": "SELECT EXISTS (SELECT {})",
    "in list": "SELECT 1 IN (2, {})",
    "in subquery": "SELECT 1 IN (SELECT {})",
    "any": "SELECT 1 = ANY ({})",
    "between": "SELECT 1 BETWEEN 0 AND {}",
    "like": "SELECT 'a' LIKE {}",
    "row": "SELECT ROW(1, {})",
    "implicit row": "SELECT (1, {}) = (1, 2)",
    "coalesce": "SELECT COALESCE(NULL, {})",
    "greatest": "SELECT GREATEST(1, {})",
    "nullif": "SELECT NULLIF(1, {})",
    "cast": "SELECT CAST({} AS text)",
    "double colon": "SELECT {}::text",
    "collate": 'SELECT {} COLLATE "C"',
    "at time zone": "SELECT now() AT TIME ZONE {}",
    "operator": "SELECT 1 + {}",
    "not": "SELECT NOT {}",
    "and": "SELECT true AND {}",
    "is null": "SELECT {} IS NULL",
    "is true": "SELECT {} IS NOT TRUE",
    "is distinct": "SELECT 1 IS DISTINCT FROM {}",
    "distinct on": "SELECT DISTINCT ON ({}) 1",
    "group by": "SELECT 1 GROUP BY {}",
    "grouping sets": "SELECT 1 GROUP BY GROUPING SETS (({}), ())",
    "cube": "SELECT 1 GROUP BY CUBE ({})",
    "union": "SELECT 1 UNION SELECT {}",
    "json object": "SELECT JSON_OBJECT('a': {})",
    "json array": "SELECT JSON_ARRAY({})",
    "json aggregate": "SELECT JSON_ARRAYAGG({})",
    "json default": "SELECT JSON_VALUE('{{}}', '$.a' DEFAULT {} ON EMPTY)",
    "json passing": "SELECT JSON_EXISTS('{{}}', '$.a' PASSING {} AS x)",
    "is json": "SELECT {} IS JSON",
    "whole expansion": "SELECT ({}).*",
    "subscripted": "SELECT ({})[1]",
}

REFUSED: list[tuple[str, str]] = [
    # G1: data-modifying queries inside WITH
    ("WITH gone AS (DELETE FROM content.film_work RETURNING *) SELECT * FROM gone", "NODE"),
    ("WITH new AS (INSERT INTO content.film_work VALUES (1) RETURNING *) SELECT * FROM new", "NODE"),
    ("SELECT * FROM (WITH u AS (UPDATE content.film_work SET id = 1 RETURNING 1) SELECT * FROM u) x", "NODE"),
    ("WITH m AS (MERGE INTO content.a USING content.b ON true WHEN MATCHED THEN DELETE RETURNING 1) SELECT 1", "NODE"),
    # G2: a SELECT that creates
    ("SELECT * INTO t FROM content.film_work", "INTO"),
    ("SELECT 1 INTO TEMP t UNION SELECT 2", "INTO"),
    ("CREATE TABLE t AS SELECT 1", "NOT_SELECT"),
    ("CREATE VIEW v AS SELECT 1", "NOT_SELECT"),
    # G4: built-in functions that act, or read the state of the server
    *(
        (f"SELECT {call}", "FUNC")
        for call in """pg_terminate_backend(1)|pg_cancel_backend(1)|pg_advisory_lock(1)|pg_notify('a','b')
            |set_config('a','b',true)|nextval('s')|setval('s',1)|lo_create(0)|lo_import('/etc/passwd')|lo_unlink(1)
            |pg_read_file('x')|pg_ls_dir('/')|dblink('x','y')|dblink_exec('x','y')|query_to_xml('select 1',true,true,'')
            |database_to_xml(true,true,'')|table_to_xml('x',true,true,'')|ts_stat('select 1')|pg_stat_get_activity(1)
            |pg_show_all_settings()|pg_logical_emit_message(true,'a','b')|current_setting('x')|version()|txid_current()
            |repeat('x', 1000000000)|random()|clock_timestamp()|pg_catalog.pg_sleep(1)
            |secret.lower('x')|db.pg_catalog.lower('x')|current_user|session_user|user|current_role|current_catalog|current_schema
            |system_user|to_regclass('x')|has_table_privilege('x','select')|inet_client_addr()""".replace(
            "\n", ""
        ).split("|")
    ),
    # x.f is also f(x): in PostgreSQL each of these sleeps
    ("SELECT (0.3::float8).pg_sleep", "FUNC"),
    ("SELECT ($1).pg_sleep", "FUNC"),
    ("SELECT ((ARRAY[1])[1]).pg_sleep", "FUNC"),
    ("SELECT x.pg_sleep FROM generate_series(1, 1) x", "FUNC"),
    ("SELECT x.lo_unlink FROM unnest(ARRAY[1]) x", "FUNC"),
    ("SELECT x.nextval FROM unnest(ARRAY['s']) x", "FUNC"),
    ("SELECT x.lo_unlink FROM generate_series(1, 1) x(y)", "FUNC"),
    ("SELECT lo_unlink.lo_unlink FROM generate_series(1, 1) lo_unlink(y)", "FUNC"),
    ("SELECT generate_series.lo_unlink FROM generate_series(1, 1)", "FUNC"),
    ("SELECT x.lo_unlink FROM ROWS FROM (generate_series(1, 1)) x", "FUNC"),
    (
        "SELECT x.lo_unlink FROM generate_series(1, 1) x WHERE 1 IN (SELECT 1 FROM generate_series(1, 1) x(lo_unlink))",
        "FUNC",
    ),
    ("SELECT (SELECT x.lo_unlink) FROM generate_series(1, 1) x", "FUNC"),
    ("SELECT f.pg_restore_relation_stats FROM content.film_work f", "FUNC"),
    ("SELECT x.pg_sleep FROM CAST(0.3 AS float8) x", "NODE"),
    # a row type whose domains are checked by functions, without its name
    ("SELECT jsonb_populate_record(f, '{}') FROM content.film_work f", "FUNC"),
    ("SELECT json_populate_recordset(base => f, from_json => '[]') FROM content.film_work f", "FUNC"),
    # G6: more than one statement
    ("SELECT 1; SELECT 2", "MULTIPLE_STATEMENTS"),
    ("SELECT 1;/* */DELETE FROM content.film_work", "MULTIPLE_STATEMENTS"),
    ("COMMIT; DELETE FROM content.film_work", "MULTIPLE_STATEMENTS"),
    # G7: an open comment
    ("SELECT 1 /*", "SYNTAX"),
    # G8: names in disguise
    ('SELECT * FROM U&"\\0073ecret".t', "SCHEMA"),
    ('SELECT * FROM "secret".t', "SCHEMA"),
    ('SELECT * FROM "Content".film_work', "SCHEMA"),
    ('SELECT "pg_sleep"(1)', "FUNC"),
    ('SELECT U&"pg\\005fsleep"(1)', "FUNC"),
    ("SELECT PG_Sleep(1)", "FUNC"),
    ('SELECT pg_catalog."pg_sleep"(1)', "FUNC"),
    # G9: a table without schema
    ("SELECT * FROM film_work", "UNQUALIFIED"),
    ("SELECT * FROM pg_class", "UNQUALIFIED"),
    ("SELECT * FROM pg_temp.film_work", "SCHEMA"),
    ("SELECT * FROM other.content.film_work", "SCHEMA"),
    ("WITH a AS (SELECT * FROM a) SELECT * FROM a", "UNQUALIFIED"),
    ("WITH a AS (SELECT * FROM b), b AS (SELECT 1) SELECT * FROM a", "UNQUALIFIED"),
    ("SELECT * FROM (WITH a AS (SELECT 1) SELECT * FROM a) x, a", "UNQUALIFIED"),
    ("(WITH a AS (SELECT 1) SELECT * FROM a) UNION SELECT * FROM a", "UNQUALIFIED"),
    ('WITH a AS (SELECT 1) SELECT * FROM "A"', "UNQUALIFIED"),
    # G10: a CTE does not stand for a table of another schema
    ("WITH t AS (SELECT 1) SELECT * FROM secret.t", "SCHEMA"),
    # G16: the catalog, by name or by type
    ("SELECT * FROM pg_catalog.pg_authid", "SCHEMA"),
    ("SELECT * FROM information_schema.tables", "SCHEMA"),
    ("SELECT * FROM pg_stat_activity", "UNQUALIFIED"),
    ("SELECT 'secret.t'::regclass", "NODE"),
    ("SELECT CAST('secret.t' AS pg_catalog.regclass)", "NODE"),
    ("SELECT '{secret.t}'::regclass[]", "NODE"),
    ("SELECT '{secret.t}'::_regclass", "NODE"),
    ("SELECT regrole 'postgres'", "NODE"),
    ("SELECT 'postgres=r/postgres'::aclitem", "NODE"),
    ("SELECT * FROM jsonb_to_record('{}') AS r (a regclass)", "NODE"),
    ("SELECT JSON_VALUE('{}', '$.a' RETURNING regclass)", "NODE"),
    ("SELECT 1::secret.t", "SCHEMA"),
    ("SELECT 1 OPERATOR(secret.+) 2", "SCHEMA"),
    ("SELECT 1 OPERATOR(content.+) 2", "SCHEMA"),
    ("SELECT 1 OPERATOR(secret.=) ANY (SELECT 1)", "SCHEMA"),
    ("SELECT 1 ORDER BY 1 USING OPERATOR(secret.<)", "SCHEMA"),
    ("SELECT 'a' COLLATE secret.c", "SCHEMA"),
    # G17: locks, samples, table functions, recursion
    *(
        (f"SELECT * FROM content.film_work FOR {lock}", "LOCKING")
        for lock in ("UPDATE", "SHARE", "NO KEY UPDATE", "KEY SHARE")
    ),
    ("SELECT * FROM (SELECT * FROM content.film_work FOR UPDATE SKIP LOCKED) x", "LOCKING"),
    ("SELECT * FROM content.film_work TABLESAMPLE SYSTEM (1)", "NODE"),
    ("SELECT * FROM XMLTABLE('/a' PASSING '<a/>' COLUMNS b text)", "NODE"),
    ("SELECT * FROM JSON_TABLE('{}', '$' COLUMNS (a int)) t", "NODE"),
    ("WITH RECURSIVE a AS (SELECT 1 UNION ALL SELECT * FROM a) SELECT * FROM a", "NODE"),
    ("SELECT xmlelement(NAME a)", "NODE"),
    # G19: statements that are no SELECT
    *(
        (statement, "NOT_SELECT")
        for statement in (
            "COPY (SELECT 1) TO PROGRAM 'sh'",
            "DO $$ BEGIN END $$",
            "CALL p()",
            "SET ROLE postgres",
            "EXPLAIN ANALYZE SELECT 1",
            "LISTEN x",
            "PREPARE p AS SELECT 1",
            "EXECUTE p",
            "LOCK TABLE content.film_work",
            "DELETE FROM content.film_work",
            "TRUNCATE content.film_work",
            "DECLARE c CURSOR FOR SELECT 1",
        )
    ),
    # G20: bytes and nothing
    ("SELECT 1\0", "NUL"),
    ("SELECT '" + "x" * 65536 + "'", "TOO_COMPLEX"),
    ("SELECT '" + "ж" * 33000 + "'", "TOO_COMPLEX"),
    ("SELECT '\ud800'", "SYNTAX"),
    ("", "EMPTY"),
    (" ; -- nothing", "EMPTY"),
    ("SELEC 1", "SYNTAX"),
    # G21: only $1 is a parameter
    ("SELECT $2", "PARAM"),
    ("SELECT $0", "PARAM"),
    ("SELECT * FROM content.film_work WHERE id = $1 AND title = $3", "PARAM"),
    ("SELECT %s", "SYNTAX"),
    ("SELECT :name", "SYNTAX"),
    ("SELECT {}", "SYNTAX"),
    ("SELECT ?", "SYNTAX"),
]

FORBIDDEN_CALLS = """
    pg_sleep(1)|pg_sleep_for('1s')|pg_sleep_until(now())|pg_terminate_backend(1)|pg_cancel_backend(1)
    |pg_advisory_lock(1)|pg_try_advisory_xact_lock(1)|pg_notify('a','b')|set_config('work_mem','1GB',false)
    |current_setting('data_directory')|nextval('content.s')|setval('content.s',1)|currval('content.s')|lastval()
    |lo_create(0)|lo_creat(1)|lo_unlink(1)|lo_import('/etc/passwd')|lo_export(1,'/tmp/x')|lo_from_bytea(0,'x')
    |lo_get(1)|lo_put(1,0,'x')|lo_open(1,131072)|loread(0,1)|lowrite(0,'x')|pg_read_file('/etc/passwd')
    |pg_read_binary_file('/etc/passwd')|pg_stat_file('/etc/passwd')|pg_ls_dir('/')|pg_ls_logdir()|pg_ls_waldir()
    |query_to_xml('select 1',true,true,'')|query_to_xmlschema('select 1',true,true,'')|cursor_to_xml('c',1,true,true,'')
    |table_to_xml('content.film_work',true,true,'')|schema_to_xml('content',true,true,'')|database_to_xml(true,true,'')
    |xpath('/a','<a/>')|xmlparse(document '<a/>')|ts_stat('select 1')|ts_rewrite('a'::tsquery,'select 1')
    |ts_debug('x')|ts_parse('default','x')|pg_stat_get_activity(NULL)|pg_show_all_settings()|pg_settings_get_flags('x')
    |pg_logical_emit_message(true,'a','b')|pg_switch_wal()|pg_create_restore_point('x')|pg_reload_conf()
    |pg_rotate_logfile()|pg_promote()|pg_backup_start('x')|pg_export_snapshot()|pg_current_xact_id()|txid_current()
    |pg_snapshot_xmin(pg_current_snapshot())|pg_relation_size('content.film_work')|pg_get_viewdef('content.v')
    |pg_get_functiondef(1)|pg_get_userbyid(10)|has_table_privilege('postgres','content.film_work','select')
    |to_regclass('secret.t')|to_regrole('postgres')|col_description(1,1)|obj_description(1,'pg_class')|version()
    |inet_server_addr()|inet_client_addr()|pg_backend_pid()|pg_postmaster_start_time()|pg_conf_load_time()
    |random()|random_normal()|setseed(0.5)|gen_random_uuid()|clock_timestamp()|timeofday()
    |repeat('x',1000000000)|array_fill(0,ARRAY[100000000])|factorial(100000)|dblink('x','y')|dblink_exec('x','y')
    |pg_replication_origin_create('x')|pg_create_logical_replication_slot('x','y')|pg_drop_replication_slot('x')
    |binary_upgrade_set_next_pg_type_oid(1)|pg_nextoid('pg_class','oid','pg_class_oid_index')|brin_summarize_new_values('x')
    |gin_clean_pending_list('x')|pg_import_system_collations('content')|pg_stat_reset()|pg_stat_clear_snapshot()
    |pg_restore_relation_stats('x','y')|pg_event_trigger_ddl_commands()|satisfies_hash_partition(1,2,3,4)
    |plpgsql_call_handler()|content.lower('x')|secret.f(1)|public.pg_sleep(1)|pg_temp.f(1)|current_user|session_user
    |user|current_role|current_catalog|current_schema|system_user
"""
"""One call for every class of functions that act, wait, read the server, or return another value every time."""

CALLS = [call.strip() for call in FORBIDDEN_CALLS.replace("\n", "").split("|") if call.strip()]

TOO_LARGE = [
    # K4: constants that the planner computes, and functions that make values of any size
    *(
        f"SELECT {call} FROM content.film_work"
        for call in (
            "lpad('x', 250000000)",
            "rpad(title, 250000000)",
            "lpad(title, length(title) * 1000)",
            "pg_catalog.lpad('x', 10001)",
            "format('%100000000s', 'x')",
            "format('%*s', 100000000, 'x')",
            "format('%1$-2000000s', 'x')",
            "format(title, 'x')",
            "'x'::char(10000000)",
            "1::bit(80000000)",
            "10::numeric ^ 100000",
            "power(10::numeric, 100000)",
            "power(power(10::numeric, 1000), 1000)",
        )
    ),
    ", ".join(["SELECT lpad('x', 250000000) AS c0", *(f"lpad('x', 250000000) AS c{n}" for n in range(1, 600))]),
    "SELECT string_agg(n::text, '') FROM generate_series(1, 1000000000000) AS n",
    "SELECT n FROM generate_series(1, 1e12) AS n",
    "SELECT n FROM generate_series(1, 10 * 1000 * 1000 * 1000) AS n",
    "SELECT n FROM generate_series(1, '1000000000'::bigint) AS n",
    "SELECT replace('" + "x" * 30000 + "', 'x', '" + "y" * 30000 + "')",
    "SELECT " + "replace(" * 8 + "'x'" + ", 'x', 'xxxxxxxxxxxxxxxx')" * 8,
    "SELECT regexp_replace('" + "x" * 20000 + "', '.', '" + "y" * 20000 + "', 'g')",
    "SELECT " + "quote_literal(" * 20 + "E'" + "x" * 40 + "'" + ")" * 20,
    "SELECT array_to_string(string_to_array('" + "x," * 9000 + "', ','), '" + "y" * 20000 + "')",
    "SELECT concat_ws('" + "y" * 30000 + "', VARIADIC string_to_array('" + "x," * 9000 + "', ','))",
    "SELECT jsonb_pretty('" + "[" * 400 + "]" * 400 + "') || jsonb_pretty('" + "[1," * 4000 + "1" + "]" * 4000 + "')",
    "SELECT a || a FROM (SELECT replace(b, 'x', '" + "y" * 900 + "') AS a FROM (SELECT '" + "x" * 9000 + "' AS b) s) t",
    "SELECT "
    + ", ".join(["a"] * 2000)
    + " FROM (SELECT replace('"
    + "x" * 500
    + "', 'x', '"
    + "y" * 500
    + "') AS a) s",
    # a column of a subquery is replaced by its expression at every use: 10 to the power of 12
    "SELECT a FROM "
    + "(SELECT "
    + " + ".join(["a"] * 10)
    + " AS a FROM "
    + ("(SELECT " + " + ".join(["a"] * 10) + " AS a FROM ") * 11
    + "(SELECT 1 AS a) s"
    + ") s" * 12,
    "WITH q0 AS (SELECT rating AS a FROM content.film_work), "
    + ", ".join(f"q{n} AS (SELECT " + " + ".join(["a"] * 10) + f" AS a FROM q{n - 1})" for n in range(1, 60))
    + " SELECT a FROM q59",
    "SELECT x FROM (VALUES ('"
    + "x" * 9000
    + "')) AS v(a), LATERAL (SELECT replace(v.a, 'x', '"
    + "y" * 900
    + "') AS x) l",
    "SELECT " + ", ".join(["s"] * 9000) + " FROM (SELECT replace('" + "x" * 900 + "', 'x', '" + "y" * 900 + "')) s",
    "SELECT " + ", ".join(["s.* IS NULL"] * 4000) + " FROM (SELECT rpad('x', 10000) AS a) s",
    "SELECT " + ", ".join(["1e131071::text"] * 3000),
    "SELECT " + ", ".join(["exp(300000.0)"] * 3000),
    "SELECT " + ", ".join(["'1e131071'::numeric::text"] * 2000),
    "SELECT '{" + "a," * 25000 + "a}'::char(10000)[]",
    "SELECT '{" + "a," * 25000 + "a}'::name[]",
    "SELECT array_replace('{" + "a," * 9000 + "a}'::text[], 'a', '" + "y" * 9000 + "')",
    "SELECT format('" + "%1$s" * 9000 + "', '" + "y" * 9000 + "')",
    "SELECT ts_headline('english', '" + "star " * 5000 + "', 'star', 'StartSel=" + "y" * 9000 + "')",
    "SELECT 1 FROM " + ", ".join(f"content.film_work f{n}" for n in range(1500)),
    "SELECT j.a FROM (SELECT replace('" + "x" * 9000 + "', 'x', '" + "y" * 900 + "') AS a) s"
    " JOIN (SELECT 'z' AS a) t USING (a) AS j",
    "SELECT r.b FROM replace('" + "x" * 9000 + "', 'x', '" + "y" * 900 + "') AS r(b)",
]
"""Refused with FUNC or TOO_COMPLEX, before PostgreSQL plans them."""
