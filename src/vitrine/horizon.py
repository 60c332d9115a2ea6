"""The function that shows a reader the open transactions of its database, without the rights of pg_read_all_stats."""

from typing import LiteralString

SCHEMA = "vitrine"
NAME = "open_transactions"
SIGNATURE = f"{SCHEMA}.{NAME}()"

COLUMNS: LiteralString = """
    now timestamptz, standby boolean, prepared bigint, prepared_since timestamptz, subscriptions text, hidden bigint,
    disabled bigint, oldest timestamptz, pid integer, role text, reader text
"""

# now() is read first: a transaction that starts later starts above the horizon.
# The functions behind pg_stat_activity and pg_prepared_xacts: a new session takes a millisecond to plan these views.
# An account without pg_read_all_stats sees only the role of another role's session.
# A session whose role, with all roles it is a member of, cannot write has nothing to commit: long reads do not hold the
# horizon back. A role can write to a table by a right on it, as its owner, who can restore a right, and through a
# SECURITY DEFINER function: called, as a trigger of the role's own temporary table, or as an event trigger. Up to
# version 15, CREATEROLE can grant itself any of these rights. A role that was dropped still has the rights of PUBLIC.
# guarantee: C2
# guarantee: J6
_BEFORE: LiteralString = """
    WITH here AS (SELECT oid FROM pg_database WHERE datname = current_database())
    SELECT now() AS now, pg_is_in_recovery() AS standby,
           (SELECT count(*) FROM pg_prepared_xact() WHERE dbid = (SELECT oid FROM here)) AS prepared,
           (SELECT min(prepared) FROM pg_prepared_xact() WHERE dbid = (SELECT oid FROM here)) AS prepared_since,
           (SELECT string_agg(quote_ident(subname), ', ' ORDER BY subname) FROM pg_subscription
             WHERE subdbid = (SELECT oid FROM here)) AS subscriptions,
           count(*) FILTER (WHERE hidden) AS hidden, count(*) FILTER (WHERE state = 'disabled') AS disabled,
           min(xact_start) AS oldest, (array_agg(pid ORDER BY xact_start NULLS LAST))[1] AS pid,
           (array_agg(usename::text ORDER BY xact_start NULLS LAST))[1] AS role, current_user::text AS reader
      FROM (SELECT pid, pg_get_userbyid(usesysid) AS usename, usesysid, xact_start, state,
                   query = '<insufficient privilege>' AND usesysid IS NOT NULL AS hidden
              FROM pg_stat_get_activity(NULL)
             WHERE datid = (SELECT oid FROM here) AND pid <> pg_backend_pid()) AS session
     WHERE xact_start IS NULL OR usesysid IS NULL OR usename = format('unknown (OID=%s)', usesysid) OR EXISTS (
               SELECT FROM pg_roles AS role
                WHERE pg_has_role(session.usesysid, role.oid, 'MEMBER')
                  AND (role.rolsuper OR role.rolcreaterole OR EXISTS (
                      SELECT FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
                       WHERE c.relkind IN ('r', 'p', 'v', 'f') AND n.nspname !~ '^(pg_|information_schema$)'
                         AND (role.oid = c.relowner
                              OR has_table_privilege(role.oid, c.oid, 'INSERT, UPDATE, DELETE, TRUNCATE')
                              OR has_any_column_privilege(role.oid, c.oid, 'INSERT, UPDATE'))) OR EXISTS (
                      SELECT FROM pg_proc AS p
                       WHERE p.prosecdef AND has_function_privilege(role.oid, p.oid, 'EXECUTE')
"""
_AFTER: LiteralString = """
                      ))) OR EXISTS (
               SELECT FROM pg_event_trigger AS e JOIN pg_proc AS p ON p.oid = e.evtfoid
                WHERE p.prosecdef AND e.evtenabled <> 'D')
"""

PLAIN = _BEFORE + _AFTER
"""For an account that sees every session."""

BODY = f"{_BEFORE}{' ' * 25}AND p.oid <> '{SIGNATURE}'::regprocedure{_AFTER}"
"""The same in the function, which is the one SECURITY DEFINER function that is known to write nothing: itself."""

FIND = """
    SELECT has_function_privilege(p.oid, 'EXECUTE') AND has_schema_privilege(n.oid, 'USAGE') AS granted
      FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace JOIN pg_language AS l ON l.oid = p.prolang
     WHERE n.nspname = %(schema)s AND p.proname = %(name)s AND p.pronargs = 0 AND l.lanname = 'sql' AND p.prosecdef
       AND p.prosrc = %(body)s AND p.proconfig = ARRAY['search_path=pg_catalog, pg_temp']
"""
"""A row if the function exists and is exactly ours: any user with CREATE on the database can make another."""

CALL: LiteralString = "SELECT * FROM vitrine.open_transactions()"

CREATE = f"""CREATE OR REPLACE FUNCTION {SIGNATURE}
RETURNS TABLE ({" ".join(COLUMNS.split())})
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $vitrine${BODY}$vitrine$"""
