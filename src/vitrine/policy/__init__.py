"""Policy: what a pipeline may read, and where it may write."""

from vitrine.policy.functions import ALLOWED_FUNCTIONS, FUNCTION_GROUPS
from vitrine.policy.source_sql import ReadOnlySql, read_only
from vitrine.policy.targets import check_target, is_allowed_target

__all__ = [
    "ALLOWED_FUNCTIONS",
    "FUNCTION_GROUPS",
    "ReadOnlySql",
    "check_target",
    "is_allowed_target",
    "read_only",
]
