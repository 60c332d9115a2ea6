"""Policy: what a pipeline may read, and where it may write."""

from vitrine.policy.check_sql import CheckSql, check_sql
from vitrine.policy.checkpoint_filter import Unfiltered, without_checkpoint_filter
from vitrine.policy.definitions import BODY_PREFIX, Approved, Named, inspect_definition
from vitrine.policy.functions import ALLOWED_FUNCTIONS, FUNCTION_GROUPS, Call, is_listed, parse_calls
from vitrine.policy.lower_bounds import other_use_of_checkpoint
from vitrine.policy.relations import relations_of
from vitrine.policy.source_sql import ReadOnlySql, read_only
from vitrine.policy.targets import check_target, is_allowed_target

__all__ = [
    "ALLOWED_FUNCTIONS",
    "BODY_PREFIX",
    "FUNCTION_GROUPS",
    "Approved",
    "Call",
    "CheckSql",
    "Named",
    "ReadOnlySql",
    "Unfiltered",
    "check_sql",
    "check_target",
    "inspect_definition",
    "is_allowed_target",
    "is_listed",
    "other_use_of_checkpoint",
    "parse_calls",
    "read_only",
    "relations_of",
    "without_checkpoint_filter",
]
