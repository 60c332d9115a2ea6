"""PostgreSQL's grammar: text to tree and back, within limits that hostile text cannot exceed."""

import re
import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import accumulate
from typing import TypeVar

import postgast
from google.protobuf.message import DecodeError, EncodeError, Message
from postgast import pg_query_pb2 as pb

from vitrine.errors import ConfigError, Place

MAX_BYTES = 64 * 1024
MAX_PARENTHESES = 500
MAX_OPERATOR_RUN = 500
MAX_SECONDS = 5.0
"""Of processor time; a list of 15 000 values takes less than one."""

PARSER_STACK_BYTES = 512 * 1024 * 1024

POSITIONS = frozenset(
    {"location", "stmt_location", "stmt_len", "list_start", "list_end", "rexpr_list_start", "rexpr_list_end"}
)

Result = TypeVar("Result")
Names = list[str]

_stack_size_lock = threading.Lock()
_OPERATOR_RUN = re.compile(r"[~!@#^&|`?+\-*/%<>=]{" + str(MAX_OPERATOR_RUN + 1) + "}")
_NODES_BETWEEN_CHECKS = 1024


class _Deadline:
    """The processor time at which the parser's thread must abort its present work; there is one such thread."""

    at = float("inf")


def check_text(sql: str) -> None:
    if "\0" in sql:
        raise ConfigError("the query contains a NUL character; remove it", code="NUL")
    # A lone surrogate has no UTF-8 form; counting must not fail before the parser reports it.
    if len(sql.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise too_complex(f"is longer than {MAX_BYTES // 1024} KB")
    # PostgreSQL's scanner reads such a run again for each of its characters; nested comments are one.
    # guarantee: K7
    if _OPERATOR_RUN.search(sql):
        raise too_complex(f"has more than {MAX_OPERATOR_RUN} operator characters or comment signs in a row")
    # The tree has no parentheses, so they are counted in the text; the few inside strings do not matter.
    if max(accumulate((c == "(") - (c == ")") for c in sql), default=0) > MAX_PARENTHESES:
        raise too_complex(f"nests more than {MAX_PARENTHESES} parentheses")


def single_select(tree: pb.ParseResult, text: str | None = None) -> pb.SelectStmt:
    """The only statement; a refusal has its place in `text`, if that is given."""
    if not tree.stmts:
        raise ConfigError("the query is empty; write one SELECT", code="EMPTY")
    if len(tree.stmts) > 1:
        raise ConfigError(
            f"the query has {len(tree.stmts)} statements, but a source needs exactly one; keep a single SELECT",
            code="MULTIPLE_STATEMENTS",
            place=_start_of(tree.stmts[1], text),
        )
    statement = tree.stmts[0].stmt
    if statement.WhichOneof("node") != "select_stmt":
        kinds = [kind.DESCRIPTOR.name for kind in children(statement)]
        raise ConfigError(
            f"{', '.join(kinds)} is not a SELECT, and a source only reads; write a SELECT",
            code="NOT_SELECT",
            place=_start_of(tree.stmts[0], text),
        )
    return statement.select_stmt


def _start_of(statement: pb.RawStmt, text: str | None) -> Place | None:
    if text is None:
        return None
    before = text.encode()[: statement.stmt_location].decode()
    following = text[len(before) :]
    return Place.at(text, len(before) + len(following) - len(following.lstrip()))


def parse(sql: str) -> pb.ParseResult:
    try:
        return postgast.parse(sql)
    except UnicodeEncodeError as exc:
        raise ConfigError("the query is not valid Unicode text; remove the broken character", code="SYNTAX") from exc
    except postgast.PgQueryError as exc:
        # Bison and PostgreSQL's own stack check report exhaustion, not a syntax error.
        if "memory exhausted" in exc.message or "stack depth" in exc.message:
            raise too_complex("is nested too deeply") from exc
        place = Place.at(sql, exc.cursorpos - 1) if exc.cursorpos > 0 else None
        text = f"the query is not valid PostgreSQL: {exc.message}; correct it"
        raise ConfigError(text, code="SYNTAX", place=place) from exc
    except (DecodeError, RecursionError) as exc:
        raise too_complex("is nested too deeply") from exc


def deparse(tree: pb.ParseResult) -> str:
    """The text of the tree; refused unless parsing it again gives the same tree."""
    try:
        text = postgast.deparse(tree)
        faithful = without_positions(parse(text)) == without_positions(tree)
    except (postgast.PgQueryError, EncodeError, RecursionError) as exc:
        raise too_complex("cannot be written back as text") from exc
    if not faithful:
        raise too_complex("changes its meaning when written back as text")
    return text


def check_time(nodes: int) -> None:
    """Call it for every node, with the number of nodes so far: refuses a text that takes too long."""
    if nodes % _NODES_BETWEEN_CHECKS == 0 and time.thread_time() > _Deadline.at:
        raise too_complex(f"takes more than {MAX_SECONDS:g} s to check")


def on_deep_stack(work: Callable[[], Result]) -> Result:
    """Run `work` on a large stack, so that hostile nesting causes a parser error and not a crash of the process.

    The work is refused when it takes too long: the parser's thread serves every request.
    """

    def limited() -> Result:
        _Deadline.at = time.thread_time() + MAX_SECONDS
        try:
            return work()
        finally:
            _Deadline.at = float("inf")

    return _parser_thread().submit(limited).result()


@cache
def _parser_thread() -> ThreadPoolExecutor:
    """One thread for the life of the process; its stack is address space, and only the depth in use takes memory."""
    threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="parser")
    # The stack size is a setting of the whole process, read when a thread starts.
    with _stack_size_lock:
        previous = threading.stack_size(PARSER_STACK_BYTES)
        try:
            threads.submit(int).result()
        finally:
            threading.stack_size(previous)
    return threads


def children(node: Message) -> Iterator[Message]:
    for field, value in node.ListFields():
        if field.message_type is not None:
            yield from value if field.is_repeated else (value,)


def descend(root: Message) -> Iterator[Message]:
    pending, seen = [root], 0
    while pending:
        node = pending.pop()
        seen += 1
        check_time(seen)
        yield node
        pending.extend(children(node))


def without_positions(tree: pb.ParseResult) -> pb.ParseResult:
    """The same tree, changed in place: positions in the text have no meaning."""
    for node in descend(tree):
        for field, _ in node.ListFields():
            if field.name in POSITIONS:
                node.ClearField(field.name)
    return tree


def names_of(nodes: Collection[pb.Node]) -> Names:
    return [node.string.sval for node in nodes]


def star_of(expression: pb.Node) -> Names | None:
    """The table of `f.*`, without name for `*`; None: the expression is something else."""
    if expression.WhichOneof("node") != "column_ref":
        return None
    *table, last = expression.column_ref.fields
    return names_of(table) if last.WhichOneof("node") == "a_star" else None


def column_name(expression: pb.Node) -> str:
    """The name that PostgreSQL gives to a column without AS; empty for `?column?`."""
    match expression.WhichOneof("node"):
        case "column_ref":
            return names_of(expression.column_ref.fields)[-1]
        case "func_call":
            return names_of(expression.func_call.funcname)[-1]
        case "type_cast":
            own = names_of(expression.type_cast.type_name.names)[-1]
            return column_name(expression.type_cast.arg) or own
        case "coalesce_expr":
            return "coalesce"
        case "min_max_expr":
            return "greatest" if expression.min_max_expr.op == pb.IS_GREATEST else "least"
        case "case_expr":
            return "case"
        case "a_array_expr":
            return "array"
        case "row_expr":
            return "row"
        case "sub_link":
            inner = expression.sub_link.subselect.select_stmt.target_list
            return (inner[0].res_target.name or column_name(inner[0].res_target.val)) if inner else ""
        case _:
            return ""


def location_of(node: Message) -> int | None:
    """Where a node begins, in bytes of the text; a node that does not know it begins with the first of its parts."""
    own = own_location(node)
    if own is not None:
        return own
    return min((one for part in descend(node) if (one := own_location(part)) is not None), default=None)


def own_location(node: Message) -> int | None:
    location = getattr(node, "location", None)
    return location if isinstance(location, int) and location >= 0 else None


def too_complex(what: str) -> ConfigError:
    return ConfigError(f"the query {what}; split it or simplify it", code="TOO_COMPLEX")


def place_of_position(typed: str, executed: str, position: int) -> Place | None:
    """The place of the character that PostgreSQL counts from 1 in the executed text; None if no node begins there."""
    offset = len(executed[: position - 1].encode())
    return on_deep_stack(lambda: _place_of_node(typed, executed, offset))


def place_of_relation(typed: str, schema: str, name: str | None = None) -> Place | None:
    """Where the query first names a relation, or any of a schema."""
    return on_deep_stack(lambda: _place_of_relation(typed, schema, name))


def _place_of_node(typed: str, executed: str, offset: int) -> Place | None:
    for one, other in _pairs(parse(executed), parse(typed)):
        if own_location(one) == offset and (found := own_location(other)) is not None:
            return Place.at_byte(typed, found)
    return None


def _place_of_relation(typed: str, schema: str, name: str | None) -> Place | None:
    found = [
        node.location
        for node in descend(parse(typed))
        if isinstance(node, pb.RangeVar) and node.schemaname == schema and name in (None, node.relname)
    ]
    return Place.at_byte(typed, min(found)) if found else None


def _pairs(first: Message, second: Message) -> Iterator[tuple[Message, Message]]:
    """The nodes of two trees that differ in positions only."""
    pending = [(first, second)]
    while pending:
        one, other = pending.pop()
        yield one, other
        pending.extend(zip(children(one), children(other), strict=False))


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
