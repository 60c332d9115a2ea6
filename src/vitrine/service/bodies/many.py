"""Bodies about a change of many pipelines at once."""

from pydantic import BaseModel, Field

from vitrine.service.bodies.control import MANY, RefusedRun


class ChangedMany(BaseModel):
    """What was changed, and the pipelines that refused it."""

    matched: int = Field(description=f"How many pipelines the conditions select, at most {MANY} at a time.")
    names: list[str]
    changed: list[str] = Field(description="Empty for a dry run.")
    refused: list[RefusedRun]
    next: str | None = Field(description="Give it as `after` for the pipelines that follow; null if these were all.")
