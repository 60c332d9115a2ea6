"""The functions a source query may call: built in, without side effects, reading nothing but their arguments.

Excluded: functions that sleep, lock, signal, write, or read files, settings, the catalog or other sessions; `repeat`
and `factorial`, which turn a few bytes into gigabytes; random functions, whose results a second read cannot confirm.
"""

from collections.abc import Mapping
from types import MappingProxyType

FUNCTION_GROUPS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        group: frozenset(names.split())
        for group, names in {
            "Aggregates": """
                any_value array_agg avg bit_and bit_or bit_xor bool_and bool_or corr count covar_pop covar_samp every
                json_agg json_agg_strict json_object_agg jsonb_agg jsonb_agg_strict jsonb_object_agg max min mode
                percentile_cont percentile_disc range_agg range_intersect_agg regr_avgx regr_avgy regr_count
                regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy stddev stddev_pop stddev_samp string_agg
                sum var_pop var_samp variance
            """,
            "Window functions": """
                cume_dist dense_rank first_value lag last_value lead nth_value ntile percent_rank rank row_number
            """,
            "Text": """
                ascii bit_length btrim casefold char_length character_length chr concat concat_ws format initcap left
                length lower lpad ltrim md5 normalize octet_length overlay parse_ident position quote_ident
                quote_literal quote_nullable regexp_count regexp_instr regexp_like regexp_match regexp_matches
                regexp_replace regexp_split_to_array regexp_split_to_table regexp_substr replace reverse right rpad
                rtrim split_part starts_with string_to_array string_to_table strpos substr substring to_hex translate
                unistr upper
            """,
            # The parser turns SIMILAR TO, LIKE … ESCAPE and IS NORMALIZED into these.
            "Behind text operators": "is_normalized like_escape similar_to_escape",
            "Bytes and hashes": """
                convert_from convert_to crc32 crc32c decode encode get_bit get_byte sha224 sha256 sha384 sha512
            """,
            "Numbers": """
                abs acos acosd asin asind atan atan2 atan2d atand bit_count cbrt ceil ceiling cos cosd cosh cot cotd
                degrees div erf erfc exp floor gcd lcm ln log log10 min_scale mod pi power radians round scale sign
                sin sind sinh sqrt tan tand tanh to_number trim_scale trunc width_bucket
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
                jsonb_extract_path_text jsonb_insert jsonb_object jsonb_object_keys jsonb_path_exists jsonb_path_match
                jsonb_path_query jsonb_path_query_array jsonb_path_query_first jsonb_populate_record
                jsonb_populate_recordset jsonb_pretty jsonb_set jsonb_set_lax jsonb_strip_nulls jsonb_to_record
                jsonb_to_recordset jsonb_typeof row_to_json to_json to_jsonb
            """,
            "Arrays": """
                array_append array_cat array_dims array_length array_lower array_ndims array_position array_positions
                array_prepend array_remove array_replace array_to_string array_upper cardinality trim_array unnest
            """,
            "Ranges": """
                daterange int4range int8range isempty lower_inc lower_inf numrange range_merge tsrange tstzrange
                upper_inc upper_inf
            """,
            "Network addresses": "broadcast family host hostmask masklen netmask network",
            "Rows and nulls": "generate_series generate_subscripts num_nonnulls num_nulls",
            "Identifiers": "uuid_extract_timestamp uuid_extract_version",
        }.items()
    }
)

ALLOWED_FUNCTIONS: frozenset[str] = frozenset[str]().union(*FUNCTION_GROUPS.values())

# What policies of row-level security ask for; a mart that depended on them without being asked would lack rows.
SESSION_FUNCTIONS: frozenset[str] = frozenset({"current_setting", "pg_has_role"})
