"""Functions that make values or rows of any size take only small constants for it."""

import re

from postgast import pg_query_pb2 as pb

from vitrine.errors import ConfigError
from vitrine.policy.syntax import descend, names_of

LONGEST_PADDING = 10_000
LONGEST_SERIES = 1_000_000

_FORMAT_WIDTH = re.compile(r"%(?:[0-9]+\$)?-?(\*|[0-9]+)")
_TIME_TYPES = frozenset({"date", "timestamp", "timestamptz", "interval"})


def check_size(call: pb.FuncCall) -> None:
    """ConfigError for a call whose result may have any size."""
    match names_of(call.funcname)[-1]:
        case "lpad" | "rpad" as name:
            _check_padding(name, call)
        case "format":
            _check_format(call)
        case "generate_series":
            _check_series(call)
        case _:
            pass


def _check_padding(name: str, call: pb.FuncCall) -> None:
    length = number_of(call.args[1]) if len(call.args) > 1 else 0
    if length is None or length > LONGEST_PADDING:
        raise _refusal(f"the length of {name} must be a constant of at most {LONGEST_PADDING}")


def _check_format(call: pb.FuncCall) -> None:
    text = text_of(call.args[0]) if call.args else ""
    if text is None:
        raise _refusal("the first argument of format must be a constant text")
    widths = _FORMAT_WIDTH.findall(text)
    if any(width == "*" or int(width) > LONGEST_PADDING for width in widths):
        raise _refusal(f"the widths in the text of format must be numbers of at most {LONGEST_PADDING}")


def _check_series(call: pb.FuncCall) -> None:
    """Times and columns bound a series; numbers alone are counted."""
    numbers = [number_of(one) for one in call.args]
    known = [one for one in numbers if one is not None]
    if len(known) == len(numbers) and 2 <= len(known) <= 3:
        first, last, step = (*known, 1)[:3]
        if step and abs(last - first) / abs(step) < LONGEST_SERIES:
            return
    elif any(_is_bounded(node) for one in call.args for node in descend(one)):
        return
    raise _refusal(
        f"generate_series of numbers takes constants, for at most {LONGEST_SERIES} rows, or columns and times"
    )


def _is_bounded(node: object) -> bool:
    if isinstance(node, pb.TypeName):
        return names_of(node.names)[-1] in _TIME_TYPES
    return isinstance(node, pb.ColumnRef | pb.ParamRef | pb.SQLValueFunction) or (
        isinstance(node, pb.FuncCall) and names_of(node.funcname)[-1] == "now"
    )


def number_of(node: pb.Node) -> float | None:
    """The value of a constant number."""
    if node.WhichOneof("node") != "a_const":
        return None
    constant = node.a_const
    match constant.WhichOneof("val"):
        case "ival":
            return constant.ival.ival
        case "fval":
            return float(constant.fval.fval)
        case _:
            return None


def text_of(node: pb.Node) -> str | None:
    """The value of a constant text."""
    is_text = node.WhichOneof("node") == "a_const" and node.a_const.WhichOneof("val") == "sval"
    return node.a_const.sval.sval if is_text else None


def _refusal(what: str) -> ConfigError:
    return ConfigError(f"{what}; larger values could exhaust the server's memory", code="FUNC")
