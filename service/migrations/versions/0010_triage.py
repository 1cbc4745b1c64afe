"""Triage of regressions: decisions, of which the last one counts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "triage",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("at", sa.DateTime(), nullable=False),
        sa.Column("code", sa.String(length=100), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("owner", sa.String(length=100), nullable=True),
        sa.Column("link", sa.String(length=2000), nullable=True),
        sa.Column("by", sa.String(length=100), nullable=False),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_triage")),
    )


def downgrade() -> None:
    op.drop_table("triage")
