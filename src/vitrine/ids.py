"""Ids, rows and cursors."""

from typing import Any, NewType
from uuid import UUID

PipelineId = NewType("PipelineId", UUID)
RunId = NewType("RunId", int)
RequestId = NewType("RequestId", UUID)

Row = dict[str, Any]

Cursor = tuple[str, ...]
"""The last position read: the cursor columns in PostgreSQL's text format (UTC and ISO), so that nothing is rounded."""
