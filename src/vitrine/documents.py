"""A pipeline's fields as a user wrote them, with the place of each."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from vitrine import input_errors
from vitrine.errors import ConfigError, DefinitionRefused, VitrineError
from vitrine.input_errors import Location
from vitrine.model import Definition
from vitrine.printable import printable

MAX_FILE_LENGTH = 300

_FIELD_OF_CODE = {
    "NAME_TAKEN": "name",
    "TARGET_TAKEN": "target_table",
    "ID_TAKEN": "id",
    "UNKNOWN_UPSTREAM": "after",
}


@dataclass(frozen=True)
class Document:
    """The fields of one file; `id` is optional among them."""

    origin: str
    fields: Mapping[str, Any]
    # file, line and column of a field, or of the nearest field around it; None: only the origin is known
    locate: Callable[[Location], str] | None = field(default=None, compare=False)

    @property
    def file(self) -> str:
        """The origin without folders of the machine that it was read on, and without control characters."""
        parts = self.origin.replace("\\", "/").split("/")
        is_absolute = parts[0] in ("", "~") or parts[0].endswith(":")
        return printable(parts[-1] if is_absolute else self.origin)[:MAX_FILE_LENGTH] or "document"

    def place(self, *location: int | str) -> str:
        return self.locate(location) if self.locate else self.origin

    @property
    def definition(self) -> Definition:
        """What the document defines; ValidationError if it is not valid."""
        return Definition.model_validate({name: value for name, value in self.fields.items() if name != "id"})

    def valid_definition(self) -> Definition:
        """What the document defines; ConfigError names place, field and reason of every mistake."""
        try:
            return self.definition
        except ValidationError as exc:
            raise ConfigError("\n".join(self.mistakes(exc)), code="INVALID") from exc

    def mistakes(self, refusal: ValidationError | VitrineError) -> list[str]:
        """The reasons of a refusal, each with its place."""
        if isinstance(refusal, ValidationError):
            wrong = input_errors.explain(refusal.errors(), Definition)
            return [f"{self.place(*one.location)}: {one.sentence}" for one in wrong]
        if isinstance(refusal, DefinitionRefused):
            return [f"{self.place(name)}: {reason}" for name, reason in refusal.reasons]
        return [f"{self.place(*self._field_of(refusal))}: {refusal}"]

    def _field_of(self, refusal: VitrineError) -> Location:
        if str(refusal).startswith("source query"):
            return ("tasks",) if self.fields.get("tasks") else ("source_query",)
        name = _FIELD_OF_CODE.get(refusal.code)
        return (name,) if name else ()
