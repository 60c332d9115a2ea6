"""Documents in a folder, as a source and as a sink."""

from pathlib import Path

from pydantic import BaseModel, Field

from vitrine.definition.connectors import Connector, SinkSpec, SourceSpec
from vitrine.settings import ConnectorSettings


class MemorySettings(ConnectorSettings):
    """Settings of the connector, which are read from VITRINE_MEMORY_…"""

    path: Path | None = Field(default=None, description="Folder of the documents; it must exist.")

    @property
    def is_configured(self) -> bool:
        return self.path is not None


class MemorySinkOptions(BaseModel):
    """Options of a pipeline that writes documents."""

    memory_request_rows: int = Field(default=500, ge=1, le=10_000, description="Rows sent in one request.")


connector = Connector(
    "memory",
    settings=MemorySettings,
    source=SourceSpec("vitrine_memory.source:MemorySource"),
    sink=SinkSpec(
        "vitrine_memory.sink:MemorySink",
        scheme="mem",
        pattern=r"[a-z][a-z0-9_]{0,62}",
        grammar="mem:name in lower-case letters, digits and underscores",
        options=MemorySinkOptions,
    ),
)
