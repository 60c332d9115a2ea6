"""The functions that SQL of users may call, and with which constants."""

import re
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

from postgast import pg_query_pb2 as pb

from vitrine.errors import ConfigError
from vitrine.sql.parse import descend, names_of

# Excluded: functions that sleep, lock, signal, write, or read files, settings, the catalog or other sessions; those
# that turn a few bytes into gigabytes; those that return another value every time, which a second read cannot confirm.
# An administrator may add others, by name and number of arguments.
FUNCTION_GROUPS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        group: frozenset(names.split())
        for group, names in {
            "Aggregates": """
                any_value array_agg avg bit_and bit_or bit_xor bool_and bool_or corr count covar_pop covar_samp every
                json_agg json_agg_strict json_object_agg json_object_agg_strict json_object_agg_unique
                json_object_agg_unique_strict jsonb_agg jsonb_agg_strict jsonb_object_agg jsonb_object_agg_strict
                jsonb_object_agg_unique jsonb_object_agg_unique_strict max min mode percentile_cont percentile_disc
                range_agg range_intersect_agg regr_avgx regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx
                regr_sxy regr_syy stddev stddev_pop stddev_samp string_agg sum var_pop var_samp variance
            """,
            "Window functions": """
                cume_dist dense_rank first_value lag last_value lead nth_value ntile percent_rank rank row_number
            """,
            "Text": """
                ascii bit_length btrim casefold char_length character_length chr concat concat_ws format initcap left
                length lower lpad ltrim md5 normalize octet_length overlay parse_ident position quote_ident
                quote_literal quote_nullable regexp_count regexp_instr regexp_like regexp_match regexp_matches
                regexp_replace regexp_split_to_array regexp_split_to_table regexp_substr replace reverse right rpad
                rtrim split_part starts_with string_to_array string_to_table strpos substr substring to_bin to_hex
                to_oct translate unistr upper
            """,
            "Full-text search": """
                array_to_tsvector json_to_tsvector jsonb_to_tsvector numnode phraseto_tsquery plainto_tsquery querytree
                setweight strip to_tsquery to_tsvector ts_delete ts_filter ts_headline ts_rank ts_rank_cd
                tsquery_phrase tsvector_to_array websearch_to_tsquery
            """,
            # The parser turns SIMILAR TO, LIKE … ESCAPE and IS NORMALIZED into these.
            "Behind text operators": "is_normalized like_escape similar_to_escape",
            "Bytes and hashes": """
                convert_from convert_to crc32 crc32c decode encode get_bit get_byte set_bit set_byte sha224 sha256
                sha384 sha512
            """,
            "Numbers": """
                abs acos acosd acosh asin asind asinh atan atan2 atan2d atand atanh bit_count cbrt ceil ceiling cos
                cosd cosh cot cotd degrees div erf erfc exp floor gamma gcd lcm lgamma ln log log10 min_scale mod pi
                pow power radians round scale sign sin sind sinh sqrt tan tand tanh to_number trim_scale trunc
                width_bucket
            """,
            "Dates and times": """
                age date date_add date_bin date_part date_subtract date_trunc extract isfinite justify_days
                justify_hours justify_interval make_date make_interval make_time make_timestamp make_timestamptz now
                overlaps statement_timestamp timezone to_char to_date to_timestamp transaction_timestamp
            """,
            "JSON": """
                array_to_json json_array_elements json_array_elements_text json_array_length json_build_array
                json_build_object json_each json_each_text json_extract_path json_extract_path_text json_object
                json_object_keys json_populate_record json_populate_recordset json_strip_nulls json_to_record
                json_to_recordset json_typeof jsonb_array_elements jsonb_array_elements_text jsonb_array_length
                jsonb_build_array jsonb_build_object jsonb_each jsonb_each_text jsonb_extract_path
                jsonb_extract_path_text jsonb_insert jsonb_object jsonb_object_keys jsonb_path_exists
                jsonb_path_exists_tz jsonb_path_match jsonb_path_match_tz jsonb_path_query jsonb_path_query_array
                jsonb_path_query_array_tz jsonb_path_query_first jsonb_path_query_first_tz jsonb_path_query_tz
                jsonb_populate_record jsonb_populate_recordset jsonb_pretty jsonb_set jsonb_set_lax jsonb_strip_nulls
                jsonb_to_record jsonb_to_recordset jsonb_typeof row_to_json to_json to_jsonb
            """,
            "Arrays": """
                array_append array_cat array_dims array_length array_lower array_ndims array_position array_positions
                array_prepend array_remove array_replace array_reverse array_sort array_to_string array_upper
                cardinality trim_array unnest
            """,
            "Ranges": """
                datemultirange daterange int4multirange int4range int8multirange int8range isempty lower_inc lower_inf
                multirange nummultirange numrange range_merge tsmultirange tsrange tstzmultirange tstzrange upper_inc
                upper_inf
            """,
            "Network addresses": """
                abbrev broadcast family host hostmask inet_merge inet_same_family masklen netmask network set_masklen
            """,
            "Rows and nulls": "generate_series generate_subscripts num_nonnulls num_nulls",
            "Identifiers": "uuid_extract_timestamp uuid_extract_version",
        }.items()
    }
)

ALLOWED_FUNCTIONS: frozenset[str] = frozenset[str]().union(*FUNCTION_GROUPS.values())

UNSTABLE: frozenset[str] = frozenset(
    {
        *("array_sample", "array_shuffle", "clock_timestamp", "gen_random_uuid", "random", "random_normal", "setseed"),
        *("timeofday", "uuidv4", "uuidv7"),
    }
)
"""Every call returns another value, so every run would write every row again, and a comparison would never agree."""

GROWING: frozenset[str] = frozenset({"array_fill", "factorial", "repeat"})
"""They turn a few bytes into gigabytes."""

Call = tuple[str, str, int]
"""Schema, name and number of arguments of a function."""

_ENTRY = re.compile(r"([^./\s]+)\.([^./\s]+)/([0-9]{1,3})")


def parse_calls(entries: Iterable[str]) -> frozenset[Call]:
    """`schema.name/arguments`, as an administrator lists them; ValueError for anything else."""
    found = [(entry, _ENTRY.fullmatch(entry)) for entry in entries]
    for entry, matched in found:
        if matched is None:
            raise ValueError(f"write {entry!r} as schema.name/arguments, such as public.similarity/2")
    return frozenset((one[1], one[2], int(one[3])) for _, one in found if one)


def why_refused(name: str, guide: str) -> str:
    """The reason against a function, with the remedy."""
    bare = name.rpartition(".")[2]
    if bare in UNSTABLE:
        return (
            f"function '{name}' returns another value at every call, so every run would change every row and no"
            " comparison would agree; use a column of the source, or a default of the target"
        )
    if bare in GROWING:
        return f"function '{name}' can turn a few bytes into gigabytes; use lpad with a constant length, or a column"
    return (
        f"function '{name}' is not on the list of allowed functions; choose one from {guide}, or ask an administrator"
        " to add it to VITRINE_ALLOWED_FUNCTIONS"
    )


def is_listed(calls: Collection[Call], schema: str, name: str, fewest: int, most: int) -> bool:
    """Whether an administrator listed a function that takes from `fewest` to `most` arguments."""
    return any((schema, name) == call[:2] and fewest <= call[2] <= most for call in calls)


# What policies of row-level security ask for; a mart that depended on them without being asked would lack rows.
SESSION_FUNCTIONS: frozenset[str] = frozenset({"current_setting", "pg_has_role"})


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
