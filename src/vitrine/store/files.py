"""The file that the definition of a pipeline was applied from."""

import hashlib
import json
from collections.abc import Sequence

from vitrine.ids import PipelineId
from vitrine.model import Definition
from vitrine.pipeline import Pipeline
from vitrine.postgres import Connection
from vitrine.store.database import execute


def digest(definition: Definition) -> bytes:
    """Equal for equal definitions, also of a release that has further fields: defaults are left out."""
    fields = definition.model_dump(mode="json", exclude_defaults=True, exclude={"type", "options"})
    options = definition.options.model_dump(mode="json", exclude_defaults=True)
    return hashlib.sha256(json.dumps([fields, options], sort_keys=True).encode()).digest()


def mark(connection: Connection, applied: Sequence[tuple[Pipeline, str]]) -> None:
    """Record which file each of these pipelines, as it is stored, was applied from."""
    execute(
        connection,
        "mark_files",
        ids=[pipeline.id for pipeline, _ in applied],
        versions=[pipeline.config_version for pipeline, _ in applied],
        names=[name for _, name in applied],
        digests=[digest(pipeline.definition) for pipeline, _ in applied],
    )


def detach(connection: Connection, pipeline_id: PipelineId) -> None:
    """No file manages the pipeline any more."""
    execute(connection, "detach_file", id=pipeline_id)
