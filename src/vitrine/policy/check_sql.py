"""What a check of type sql may read: one SELECT over the rows to be published, and nothing else."""

from functools import lru_cache
from typing import NamedTuple

from postgast import pg_query_pb2 as pb

from vitrine.checks import MART
from vitrine.errors import ConfigError
from vitrine.policy.expansion import check_expansion
from vitrine.policy.functions import ALLOWED_FUNCTIONS
from vitrine.policy.inspection import GUIDE, Inspection
from vitrine.policy.syntax import Names, check_text, deparse, descend, on_deep_stack, parse, single_select


class CheckSql(NamedTuple):
    """A SELECT that passed the policy; text is what the parser deparsed, never what the user typed."""

    text: str

    def over(self, rows: str) -> str:
        """The text with every `mart` replaced, in the syntax tree, by a subquery that the caller has composed."""
        return on_deep_stack(lambda: _over(self.text, rows))


def check_sql(query: str) -> CheckSql:
    """The query of a check; ConfigError if it is anything but one SELECT that reads `mart` alone."""
    check_text(query)
    return _check_sql_cached(query)


@lru_cache(maxsize=256)
def _check_sql_cached(query: str) -> CheckSql:
    return on_deep_stack(lambda: _check_sql(query))


def _check_sql(query: str) -> CheckSql:
    tree = parse(query)
    statement = single_select(tree, query)
    inspection = _CheckInspection(query)
    inspection.inspect(statement)
    if not inspection.reads_rows:
        raise ConfigError(f"the query does not read {MART}, the rows to be published; write FROM {MART}", code="SCHEMA")
    check_expansion(statement)
    return CheckSql(deparse(tree))


class _CheckInspection(Inspection):
    """Neither schemas nor functions that an administrator allows for sources: the query runs in the target."""

    def __init__(self, text: str) -> None:
        super().__init__((), text)
        self.reads_rows = False

    def _check_relation(self, relation: pb.RangeVar, with_names: frozenset[str]) -> None:
        if MART in with_names:
            raise ConfigError(f"a WITH query has the name {MART}, which names the rows; rename it", code="SCHEMA")
        if relation.relname == MART and not relation.schemaname:
            self._count_relation()
            self.reads_rows = True
            return
        if relation.schemaname or relation.relname not in with_names:
            name = ".".join(filter(None, (relation.catalogname, relation.schemaname, relation.relname)))
            raise ConfigError(
                f"table '{name}' cannot be read by a check, which reads {MART}, the rows to be published, and nothing"
                f" else; write FROM {MART}",
                code="SCHEMA",
            )
        super()._check_relation(relation, with_names)

    def _check_function(self, names: Names, arguments: int) -> None:
        *schemas, function = names
        if schemas not in ([], ["pg_catalog"]) or function not in ALLOWED_FUNCTIONS:
            raise ConfigError(
                f"function '{'.'.join(names)}' cannot be called by a check, which executes in the target; choose one"
                f" from {GUIDE}",
                code="FUNC",
            )

    def _check_parameter(self, number: int) -> None:
        raise ConfigError(f"parameter ${number} has no value in a check; write the value itself", code="PARAM")


def _over(text: str, rows: str) -> str:
    tree, subquery = parse(text), single_select(parse(rows))
    for node in list(descend(tree)):
        if isinstance(node, pb.Node) and node.WhichOneof("node") == "range_var" and not node.range_var.schemaname:
            named = node.range_var
            if named.relname != MART:
                continue
            found = pb.RangeSubselect(alias=named.alias if named.HasField("alias") else pb.Alias(aliasname=MART))
            found.subquery.select_stmt.CopyFrom(subquery)
            node.range_subselect.CopyFrom(found)
    return deparse(tree)
