"""Checks of a pipeline, and what they have found in each run."""

from pathlib import Path

from alembic import op

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    op.execute(Path(__file__).with_suffix(".sql").read_text("utf-8"))
