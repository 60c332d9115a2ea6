"""Bodies that show an object of the store or of the engine as it is."""

from typing import Self

from pydantic import BaseModel


class Mirror(BaseModel):
    """A body whose fields are attributes of what it shows, under the same names; further attributes are left out."""

    @classmethod
    def of(cls, shown: object) -> Self:
        return cls.model_validate(shown, from_attributes=True)
