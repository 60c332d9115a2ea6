"""The body of a change: some fields of a pipeline. Only the API needs it, and it is slow to build."""

from copy import copy
from typing import TYPE_CHECKING, Any, Optional

from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.fields import FieldInfo

from vitrine import plugins
from vitrine.model import Definition, Options, StateChoice


class _PartialDefinition(BaseModel):
    """Some fields of a pipeline; the others stay as they are."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"batch_size": 10_000, "schedule_interval": "1h"}]}
    )

    state: StateChoice | None = Field(
        default=None,
        description="Keep or reset the checkpoint when the query, cursor, key or target changes.",
    )


def _optional(field: FieldInfo) -> Any:
    optional = copy(field)
    optional.default = None
    return (Optional[field.annotation], optional)  # noqa: UP045 – the annotation is a value here, not a type


if TYPE_CHECKING:

    class Change(_PartialDefinition): ...

else:
    # generated from Definition, so that a new field there is optional here
    Change = create_model(
        "Change",
        __base__=_PartialDefinition,
        __doc__=_PartialDefinition.__doc__,
        **{name: _optional(field) for name, field in Definition.model_fields.items() if name != "options"},
        # which of them belong to the pipeline is checked with the stored definition
        options=(Optional[plugins.every_option(Options)], None),  # noqa: UP045
    )
