"""Annotations: what somebody knows of a moment, a commit, a scenario or a run."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "annotations",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("at", sa.DateTime(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("by", sa.String(length=100), nullable=False),
        sa.Column("commit", sa.String(length=100), nullable=True),
        sa.Column("scenario", sa.String(length=200), nullable=True),
        sa.Column("run_id", sa.String(length=32), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_annotations")),
    )
    op.create_index(op.f("ix_annotations_at"), "annotations", ["at"])


def downgrade() -> None:
    op.drop_table("annotations")
