"""The environment variables that Vitrine reads."""

from functools import cache

from vitrine.definition import connectors
from vitrine.settings import Settings, known_variables


@cache
def known() -> frozenset[str]:
    """Names of settings; of one with several parts, its beginning."""
    return frozenset(known_variables(connectors.variables()))


def is_known(name: str) -> bool:
    """Whether a setting has this variable, also `VITRINE_SOURCES__DEFAULT` and `VITRINE_DATABASE_URL_FILE`."""
    secret = name.removesuffix("_FILE")
    if secret != name and not _is_secret(secret):
        return False
    return secret.partition("__")[0] in known()


def _is_secret(name: str) -> bool:
    field = Settings.model_fields.get(name.partition("__")[0].removeprefix("VITRINE_").lower())
    return field is not None and "SecretStr" in str(field.annotation)
