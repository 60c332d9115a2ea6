"""Bodies of the diagnosis of an installation."""

from typing import Literal, Self

from pydantic import BaseModel, Field

from vitrine.plugins import Diagnosis

Level = Literal["ok", "warning", "error"]


class CheckBody(BaseModel):
    subject: str
    level: Level
    text: str
    remedy: str | None = Field(description="How to mend it; null where nothing is wrong.")

    @classmethod
    def of(cls, diagnosis: Diagnosis) -> Self:
        return cls(subject=diagnosis.subject, level=diagnosis.level, text=diagnosis.text, remedy=diagnosis.remedy)


class DoctorReport(BaseModel):
    healthy: bool = Field(description="No check ended with an error.")
    checks: list[CheckBody]

    @classmethod
    def of(cls, diagnoses: list[Diagnosis]) -> Self:
        checks = [CheckBody.of(one) for one in diagnoses]
        return cls(healthy=all(one.level != "error" for one in checks), checks=checks)
