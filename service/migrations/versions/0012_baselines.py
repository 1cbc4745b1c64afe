"""Baselines: the code that a scenario is held against; a trial is found in the history by its name."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "baselines",
        sa.Column("scenario", sa.String(length=200), nullable=False),
        sa.Column("commit", sa.String(length=64), nullable=False),
        sa.Column("diff", sa.String(length=64), nullable=False),
        sa.Column("at", sa.DateTime(), nullable=False),
        sa.Column("by", sa.String(length=100), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("scenario", name=op.f("pk_baselines")),
    )
    op.create_index(op.f("ix_samples_trial"), "samples", ["trial"])


def downgrade() -> None:
    op.drop_index(op.f("ix_samples_trial"), "samples")
    op.drop_table("baselines")
