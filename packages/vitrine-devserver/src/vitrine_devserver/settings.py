"""Settings of the development server."""

import os
from pathlib import Path

from pydantic import AliasChoices, Field

from vitrine import settings
from vitrine.settings import ConnectorSettings

SYSTEM_CACHE = Path("/var/cache")
"""That of root: another user runs its server, and may not enter the home of root."""


class DevServerSettings(ConnectorSettings):
    """Where the development server finds its programs."""

    cache: Path | None = Field(default=None, validation_alias=AliasChoices("VITRINE_DEVSERVER_CACHE", "cache"))
    user_cache: Path | None = Field(default=None, validation_alias=AliasChoices("XDG_CACHE_HOME", "user_cache"))
    java_home: Path | None = Field(default=None, validation_alias=AliasChoices("JAVA_HOME", "java_home"))

    @property
    def folder(self) -> Path:
        """Where downloaded servers are kept, outside every clone."""
        if self.cache is not None:
            return self.cache.expanduser().absolute()
        user_cache = self.user_cache
        # the XDG specification: a relative path is invalid and must be ignored
        if user_cache is None or not user_cache.is_absolute():
            user_cache = SYSTEM_CACHE if os.geteuid() == 0 else Path.home() / ".cache"
        return user_cache / "vitrine"


def load() -> DevServerSettings:
    return settings.load().section("devserver", DevServerSettings)
