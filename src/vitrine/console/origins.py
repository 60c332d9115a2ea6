"""Where an error comes from, by its code: whom to ask first."""

from vitrine.console import texts

_SOURCE = (
    *("SOURCE", "READER_ERROR", "ROW_TOO_LARGE", "RESULT_TOO_LARGE", "PLAN_TIMEOUT", "FIRST_ROW_TIMEOUT"),
    *("TEMP_FILE_LIMIT", "CURSOR", "HORIZON", "ROW_SECURITY", "NULL_CURSOR", "DUPLICATE_KEY", "NULL_KEY"),
    *("UNKNOWN_SOURCE", "SCHEMA_NOT_ALLOWED", "SYNTAX", "FUNC", "NODE", "PARAM", "NOT_SELECT", "UNQUALIFIED"),
    *("DELETE_COLUMN", "QUERY"),
)
_TRANSFORM = ("TRANSFORM", "UNKNOWN_TASK", "TASK_OPTIONS", "KEY_OF_TRANSFORM", "NO_LANE")
_TARGET = (
    *("TARGET", "SINK", "SCHEMA_CHANGED", "SHRINK_GUARD", "STAGING", "INDEX", "BULK", "VERSION_REGRESSION"),
    *("TOO_MANY_REJECTS", "UNIQUE_SWAP", "DATA_ERROR", "ENCODING"),
)
_CODES = ((_TRANSFORM, texts.TRANSFORM), (_TARGET, texts.TARGET), (_SOURCE, texts.SOURCE))


def origin_of(code: str, message: str = "") -> str:
    """Source, transform, target or platform. A failed connection names its side in the message."""
    for beginnings, side in _CODES:
        if code.startswith(beginnings):
            return side
    if message.startswith("source "):
        return texts.SOURCE
    return texts.TARGET if message.startswith("target ") else texts.PLATFORM
