"""Bodies of `apply`: pipelines as documents, and what they change."""

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from vitrine.documents import Document
from vitrine.input_errors import Location, field_path
from vitrine.model import StateChoice
from vitrine.service.bodies.examples import DEFINITION_EXAMPLE, example
from vitrine.service.bodies.mirror import Mirror

MOST_DOCUMENTS = 5000


class DocumentBody(BaseModel):
    """The fields of one pipeline, and where they come from."""

    model_config = ConfigDict(extra="forbid")

    origin: str = Field(
        max_length=300, description="The name of the file, for errors and for `managed_by` of the pipeline."
    )
    fields: dict[str, Any] = Field(description="The fields of a pipeline; `id` may be among them.")
    places: dict[str, str] = Field(
        default_factory=dict[str, str],
        description="Places of fields for errors, by their paths, such as `options.lookback`; of the document by ``.",
    )

    @classmethod
    def of(cls, document: Document) -> Self:
        places = {field_path(location): document.place(*location) for location in _locations(document.fields)}
        return cls(origin=document.origin, fields=dict(document.fields), places=places)

    @property
    def document(self) -> Document:
        return Document(self.origin, self.fields, self._locate)

    def _locate(self, location: Location) -> str:
        """The place of the field, or of the nearest one around it."""
        for length in range(len(location), -1, -1):
            if found := self.places.get(field_path(location[:length])):
                return found
        return self.origin


def _locations(value: Any, inside: Location = ()) -> list[Location]:
    items: list[tuple[int | str, Any]] = []
    if isinstance(value, dict):
        items = [(str(name), one) for name, one in value.items()]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    elif isinstance(value, list):
        items = list(enumerate(value))  # pyright: ignore[reportUnknownArgumentType]
    return [inside, *(found for name, one in items for found in _locations(one, (*inside, name)))]


class ApplyBody(BaseModel):
    """Pipelines to create and change, and the names of those to delete: all of it, or nothing."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [{"documents": [{"origin": "top_genres.yaml", "fields": DEFINITION_EXAMPLE}], "dry_run": True}]
        },
    )

    documents: list[DocumentBody] = Field(max_length=MOST_DOCUMENTS)
    delete: list[str] = Field(default_factory=list[str], max_length=MOST_DOCUMENTS, description="Pipelines to delete.")
    state: StateChoice | None = Field(
        default=None, description="For a changed query with a checkpoint: keep or reset it."
    )
    ask: bool = Field(default=True, description="Ask sources and targets first: 422 if no run could succeed.")
    dry_run: bool = Field(default=False, description="Make every check, and change nothing.")

    @model_validator(mode="after")
    def _does_something(self) -> Self:
        if not self.documents and not self.delete:
            raise ValueError("give at least one document, or the name of a pipeline to delete")
        return self


class DifferenceBody(Mirror):
    field: str
    old: Any = Field(description="null: the default.")
    new: Any = Field(description="null: the default.")


class AppliedPipelineBody(Mirror):
    name: str
    outcome: Literal["created", "changed", "unchanged", "deleted"]
    differences: list[DifferenceBody]
    resets: bool = Field(description="The state is reset, because `state: reset` was given.")
    drifted: bool = Field(
        default=False,
        description="The stored definition had been changed since it was applied from a file; the document replaces"
        " these changes.",
    )


class AppliedBody(BaseModel):
    """What the documents change, pipeline by pipeline."""

    model_config = example(
        {
            "dry_run": False,
            "pipelines": [
                {
                    "name": "top_genres",
                    "outcome": "changed",
                    "differences": [{"field": "batch_size", "old": None, "new": 500}],
                    "resets": False,
                    "drifted": False,
                }
            ],
            "warnings": [],
        }
    )

    dry_run: bool
    pipelines: list[AppliedPipelineBody]
    warnings: list[str] = Field(description="Findings of sources and targets that do not prevent a run.")
