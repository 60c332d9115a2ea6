"""What a caller may do: each role includes the rights of the ones before it."""

from enum import StrEnum


class Role(StrEnum):
    VIEWER = "viewer"
    """Reads definitions, status and history."""

    OPERATOR = "operator"
    """Also runs, pauses, resumes, resets and checks pipelines."""

    ADMIN = "admin"
    """Also changes definitions, which contain SQL, deletes pipelines, and manages tokens."""

    def includes(self, other: "Role") -> bool:
        ranked = list(Role)
        return ranked.index(self) >= ranked.index(other)
