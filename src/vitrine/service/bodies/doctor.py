"""Bodies of the diagnosis of an installation."""

from collections.abc import Iterable
from typing import Literal, Self

from pydantic import BaseModel, Field

from vitrine.plugins import Diagnosis
from vitrine.service.bodies.mirror import Mirror

Level = Literal["ok", "warning", "error"]


def of_definitions(invalid: Iterable[tuple[str, str]]) -> list[Diagnosis]:
    """The names of the pipelines whose stored definition is not valid, each with the reason."""
    remedy = "apply a valid definition with `vitrine apply`, or delete the pipeline"
    found = [Diagnosis("pipelines", "error", f"'{name}' is not valid: {reason}", remedy) for name, reason in invalid]
    return found or [Diagnosis("pipelines", "ok", "every stored definition is valid")]


class CheckBody(Mirror):
    subject: str
    level: Level
    text: str
    remedy: str | None = Field(description="How to mend it; null where nothing is wrong.")


class DoctorReport(BaseModel):
    healthy: bool = Field(description="No check ended with an error.")
    checks: list[CheckBody]

    @classmethod
    def of(cls, diagnoses: list[Diagnosis]) -> Self:
        checks = [CheckBody.of(one) for one in diagnoses]
        return cls(healthy=all(one.level != "error" for one in checks), checks=checks)
