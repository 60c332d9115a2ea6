"""Statements that read the definitions of a source from its catalog."""

# The relations that are tables without anything that reading them would execute or hide, nor children: most queries
# read no others, and this answer is faster than the following ones
PLAIN = """
    SELECT count(*) AS tables FROM pg_class c
     WHERE c.oid = ANY ({}::regclass[]) AND c.relkind = 'r' AND NOT c.relhassubclass AND NOT c.relrowsecurity
       AND NOT EXISTS (SELECT FROM pg_attribute a
                        WHERE a.attrelid = c.oid AND (a.attgenerated = 'v' OR a.atttypid >= 16384))
"""

# Reading a table reads its partitions and children, in whatever schema: the owner of the table attached them.
RELATIONS = """
    WITH RECURSIVE wanted AS (
        SELECT c.oid FROM unnest(%(schemas)s::text[], %(names)s::text[]) AS a (schema, name)
          JOIN pg_namespace n ON n.nspname = a.schema JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = a.name
         UNION
        SELECT unnest(%(oids)s::oid[])
    ), members AS (
        SELECT oid AS root, oid FROM wanted
         UNION
        SELECT m.root, i.inhrelid FROM members m JOIN pg_inherits i ON i.inhparent = m.oid
    )
    SELECT c.oid, n.nspname AS schema, c.relname AS name, c.relkind::text AS kind, c.reltype AS row_type,
           pg_get_userbyid(c.relowner) AS owner,
           coalesce(c.reloptions && '{security_invoker=true,security_invoker=on,security_invoker=1}', false) AS invoker,
           c.relrowsecurity AS row_security, row_security_active(c.oid) AS limited,
           EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attgenerated = 'v') AS is_computed,
           ARRAY(SELECT format('%%s.%%s', s.nspname, f.relname) FROM members m JOIN pg_class f ON f.oid = m.oid
                   JOIN pg_namespace s ON s.oid = f.relnamespace
                  WHERE m.root = c.oid AND f.relkind = 'f' ORDER BY 1) AS foreign_tables,
           EXISTS (SELECT FROM pg_cast k WHERE k.castfunc >= 16384)
           OR EXISTS (SELECT FROM pg_range g WHERE g.rngsubdiff >= 16384 OR g.rngcanonical >= 16384) AS types_call
      FROM wanted w JOIN pg_class c ON c.oid = w.oid JOIN pg_namespace n ON n.oid = c.relnamespace
     ORDER BY schema, name
"""

RELATION_DEFINITIONS = """
    SELECT r.ev_class AS owner, r.tableoid AS class, r.oid AS object,
           pg_get_viewdef(r.ev_class) AS text, false AS session
      FROM pg_rewrite r WHERE r.ev_class = ANY (%(oids)s::oid[]) AND r.rulename = '_RETURN'
     UNION ALL
    SELECT d.adrelid, d.tableoid, d.oid, 'SELECT ' || pg_get_expr(d.adbin, d.adrelid), false
      FROM pg_attrdef d JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
     WHERE d.adrelid = ANY (%(oids)s::oid[]) AND a.attgenerated = 'v'
     UNION ALL
    SELECT p.polrelid, p.tableoid, p.oid, 'SELECT ' || pg_get_expr(p.polqual, p.polrelid), true
      FROM pg_policy p WHERE p.polrelid = ANY (%(oids)s::oid[]) AND p.polcmd IN ('r', '*') AND p.polqual IS NOT NULL
                         AND %(respect)s
"""

# Executed without being named: functions that cast a value of a relation from or to another type, which operators,
# to_jsonb and others do, and those of a range type, one of which the planner calls to estimate a condition. Those of an
# extension are a superuser's.
TYPE_FUNCTIONS = """
    WITH RECURSIVE made_of AS (
        SELECT a.attrelid AS relation, a.atttypid AS type FROM pg_attribute a
         WHERE a.attrelid = ANY (%(oids)s::oid[]) AND a.attnum > 0 AND a.atttypid >= 16384
         UNION
        SELECT m.relation, p.part FROM made_of m JOIN pg_type t ON t.oid = m.type CROSS JOIN LATERAL (
            SELECT unnest(ARRAY[t.typbasetype, t.typelem])
             UNION ALL
            SELECT a.atttypid FROM pg_attribute a WHERE a.attrelid = t.typrelid AND a.attnum > 0
             UNION ALL
            SELECT unnest(ARRAY[g.rngtypid, g.rngsubtype]) FROM pg_range g WHERE t.oid IN (g.rngtypid, g.rngmultitypid)
        ) AS p (part) WHERE p.part >= 16384
    ), attached AS (
        SELECT m.relation, m.type, k.castfunc::oid AS function
          FROM made_of m JOIN pg_cast k ON m.type IN (k.castsource, k.casttarget)
         UNION
        SELECT m.relation, m.type, unnest(ARRAY[g.rngsubdiff, g.rngcanonical])::oid
          FROM made_of m JOIN pg_range g ON g.rngtypid = m.type
    )
    SELECT a.relation, format_type(a.type, NULL) AS type, a.function
      FROM attached a JOIN pg_proc p ON p.oid = a.function
     WHERE a.function >= 16384
       AND NOT EXISTS (SELECT FROM pg_depend d JOIN pg_roles r ON r.oid = p.proowner AND r.rolsuper
                        WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e')
"""

# Defaults of arguments are inserted when a call is planned, so they are not in the text of the caller.
# Without the functions that PostgreSQL makes for every range type: their code is its own
FUNCTIONS = """
    SELECT p.tableoid AS class, p.oid, p.oid::regprocedure::text AS signature, p.prokind::text AS kind,
           (SELECT nspname FROM pg_namespace n WHERE n.oid = p.pronamespace) AS schema, p.proname AS name,
           p.pronargs - p.pronargdefaults AS fewest,
           CASE WHEN p.provariadic = 0 THEN p.pronargs ELSE 1000 END AS most,
           p.prosecdef AS definer, pg_get_userbyid(p.proowner) AS owner, pg_get_function_sqlbody(p.oid) AS body,
           'SELECT ' || pg_get_expr(p.proargdefaults, 0) AS defaults, coalesce(p.proconfig, '{}') AS settings
      FROM pg_proc p WHERE p.oid = ANY (%(oids)s::oid[])
       AND NOT (p.prolang = (SELECT oid FROM pg_language WHERE lanname = 'internal') AND p.prosrc IN (
           'range_constructor2', 'range_constructor3',
           'multirange_constructor0', 'multirange_constructor1', 'multirange_constructor2'))
     ORDER BY signature
"""

CALLED = """
    SELECT n.nspname AS schema, p.proname AS name, p.oid, p.pronargs - p.pronargdefaults AS fewest,
           CASE WHEN p.provariadic = 0 THEN p.pronargs ELSE 1000 END AS most
      FROM unnest(%(schemas)s::text[], %(names)s::text[]) AS a (schema, name)
      JOIN pg_namespace n ON n.nspname = a.schema JOIN pg_proc p ON p.pronamespace = n.oid AND p.proname = a.name
"""

# A role may attach any function that it may execute to an operator. Trusted: members of a superuser's extension, and
# functions that are also behind a built-in operator.
OPERATORS = """
    SELECT o.oid, o.oid::regoperator::text AS signature, o.oprcode::oid AS function, p.proname AS function_name,
           p.oid < 16384 AS built_in,
           EXISTS (SELECT FROM pg_operator b WHERE b.oid < 12000 AND b.oprcode = o.oprcode)
           OR EXISTS (SELECT FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
                        JOIN pg_roles r ON r.oid = e.extowner AND r.rolsuper
                       WHERE d.classid = 'pg_operator'::regclass AND d.objid = o.oid AND d.deptype = 'e') AS trusted
      FROM pg_operator o JOIN pg_proc p ON p.oid = o.oprcode WHERE o.oid = ANY (%(oids)s::oid[]) ORDER BY signature
"""

NAMED_TYPES = """
    SELECT n.nspname AS schema, t.typname AS name, t.oid
      FROM unnest(%(schemas)s::text[], %(names)s::text[]) AS a (schema, name)
      JOIN pg_namespace n ON n.nspname = a.schema JOIN pg_type t ON t.typnamespace = n.oid AND t.typname = a.name
"""

# Base type, element, fields and subtype of each type; functions that make a range canonical, that tell the distance of
# its values, and that cast them
TYPES = """
    SELECT t.oid, format_type(t.oid, NULL) AS name,
           ARRAY(SELECT part FROM unnest(ARRAY[t.typbasetype, t.typelem, r.rngsubtype]
                     || ARRAY(SELECT a.atttypid FROM pg_attribute a WHERE a.attrelid = t.typrelid AND a.attnum > 0)
                 ) AS part WHERE part >= 16384) AS parts,
           ARRAY(SELECT f FROM unnest(ARRAY[r.rngcanonical::oid, r.rngsubdiff::oid]) AS f WHERE f >= 16384)
           || ARRAY(SELECT k.castfunc FROM pg_cast k JOIN pg_proc p ON p.oid = k.castfunc
                     WHERE t.oid IN (k.castsource, k.casttarget) AND k.castfunc >= 16384 AND NOT EXISTS (
                         SELECT FROM pg_depend d JOIN pg_roles o ON o.oid = p.proowner AND o.rolsuper
                          WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e')) AS functions
      FROM pg_type t LEFT JOIN pg_range r ON t.oid IN (r.rngtypid, r.rngmultitypid)
     WHERE t.oid = ANY (%(oids)s::oid[]) ORDER BY name
"""

TYPE_DEFINITIONS = """
    SELECT c.contypid AS owner, c.tableoid AS class, c.oid AS object,
           'SELECT ' || pg_get_expr(c.conbin, 0) AS text, false AS session
      FROM pg_constraint c WHERE c.contypid = ANY (%(oids)s::oid[]) AND c.conbin IS NOT NULL
"""

DEPENDENCIES = """
    SELECT DISTINCT d.classid AS class, d.objid AS object, d.refclassid::regclass::text AS kind, d.refobjid AS oid,
           coalesce(pn.nspname, o_n.nspname) AS schema, coalesce(p.proname, o.oprname) AS name
      FROM unnest(%(classes)s::oid[], %(objects)s::oid[]) AS a (class, object)
      JOIN pg_depend d ON d.classid = a.class AND d.objid = a.object
      LEFT JOIN pg_proc p ON d.refclassid = 'pg_proc'::regclass AND p.oid = d.refobjid
      LEFT JOIN pg_namespace pn ON pn.oid = p.pronamespace
      LEFT JOIN pg_operator o ON d.refclassid = 'pg_operator'::regclass AND o.oid = d.refobjid
      LEFT JOIN pg_namespace o_n ON o_n.oid = o.oprnamespace
     WHERE d.refclassid IN ('pg_class'::regclass, 'pg_proc'::regclass, 'pg_operator'::regclass, 'pg_type'::regclass)
"""
