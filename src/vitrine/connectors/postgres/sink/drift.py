"""The columns that a pipeline wrote last: kept with the checkpoint, and compared with those of the next run."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from vitrine.flow.rows import Column, bare_type
from vitrine.model import Definition

_MAX_BYTES = 6000
"""The store keeps 8 KB of facts; of wider tables, a hash is kept."""


class WrittenColumns:
    """Columns of the last write, with their types; empty before the first one."""

    def __init__(self, facts: Mapping[str, Any], definition: Definition) -> None:
        self._facts = facts
        self._steps = _hash([definition.source, *(step.model_dump(mode="json") for step in definition.steps)])

    @property
    def names(self) -> frozenset[str]:
        """Empty also for a table that is too wide for a list of names."""
        return frozenset(self._facts.get("columns", {}))

    def after(self, columns: Sequence[Column]) -> dict[str, Any]:
        """What is kept with the checkpoint after these columns are written."""
        types = _types(columns)
        described = {"columns": types} if len(json.dumps(types).encode()) <= _MAX_BYTES else {"hash": _hash(types)}
        return {**described, "steps": self._steps}

    def removed(self, columns: Sequence[Column]) -> list[str]:
        """Columns that are no longer read, although query and transforms are the same; a user may remove one there."""
        if self._facts.get("steps") != self._steps:
            return []
        names = {column.name for column in columns}
        # guarantee: J13
        return [name for name in self._facts.get("columns", {}) if name not in names]

    def retyped(self, columns: Sequence[Column]) -> list[tuple[Column, str]]:
        """Columns whose type is another one, with the type they had; lengths and scales do not count."""
        types: Mapping[str, str] = self._facts.get("columns", {})
        # the type of a column that a transform made depends on its values
        before = [(column, types.get(column.name, column.type)) for column in columns if not column.inferred]
        return [(column, old) for column, old in before if bare_type(old) != bare_type(column.type)]

    def differ(self, columns: Sequence[Column]) -> bool:
        """Whether the columns of a table that is too wide for a comparison by name have changed."""
        same_steps = self._facts.get("steps") == self._steps
        return same_steps and "hash" in self._facts and self._facts["hash"] != _hash(_types(columns))


def _types(columns: Sequence[Column]) -> dict[str, str]:
    return {column.name: "" if column.inferred else column.type for column in columns}


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]
