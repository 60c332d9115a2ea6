"""The relations that a query names, whether the policy allows them or not."""

from postgast import pg_query_pb2 as pb

from vitrine.policy.syntax import check_text, descend, on_deep_stack, parse


def relations_of(sql: str) -> frozenset[tuple[str, str]]:
    """(schema, table); a name without a schema is one of WITH. ConfigError if the text cannot be parsed."""
    check_text(sql)
    return on_deep_stack(lambda: _relations_of(sql))


def _relations_of(sql: str) -> frozenset[tuple[str, str]]:
    return frozenset(
        (node.schemaname, node.relname)
        for node in descend(parse(sql))
        if isinstance(node, pb.RangeVar) and node.schemaname
    )
