"""What histories and comparisons are made of. The rows come from trial directories, by the service that has them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
SAME = ("scenario", "version", "commit", "diff", "fingerprint", "session")


def upgrade() -> None:
    op.create_table(
        "points",
        sa.Column("id", SERIAL, nullable=False),
        sa.Column("scenario", sa.String(length=200), nullable=False),
        sa.Column("version", sa.String(length=12), nullable=False),
        sa.Column("commit", sa.String(length=64), nullable=False),
        sa.Column("diff", sa.String(length=64), nullable=False),
        sa.Column("fingerprint", sa.String(length=12), nullable=False),
        sa.Column("session", sa.String(length=40), nullable=False),
        sa.Column("faults", sa.Text(), nullable=False),
        sa.Column("trials", sa.Integer(), nullable=False),
        sa.Column("first_at", sa.String(length=40), nullable=False),
        sa.Column("last_at", sa.String(length=40), nullable=False),
        sa.Column("seeded", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_points")),
        sa.UniqueConstraint(*SAME, name=op.f(f"uq_points_{'_'.join(SAME)}")),
    )
    op.create_index("ix_points_scenario_first_at", "points", ["scenario", "first_at"])
    op.create_index("ix_points_commit_diff", "points", ["commit", "diff"])
    op.create_table(
        "digests",
        sa.Column("digest", sa.String(length=12), nullable=False),
        sa.Column("document", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_digests")),
    )
    op.create_table(
        "samples",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("point_id", SERIAL, nullable=False),
        sa.Column("trial", sa.String(length=200), nullable=False),
        sa.Column("at", sa.String(length=40), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("judged", sa.Boolean(), nullable=False),
        sa.Column("succeeded", sa.Boolean(), nullable=False),
        sa.Column("seeded", sa.Boolean(), nullable=False),
        sa.Column("times", sa.JSON(), nullable=False),
        sa.Column("versions", sa.JSON(), nullable=False),
        sa.Column("place", sa.String(length=1000), nullable=False),
        sa.ForeignKeyConstraint(["point_id"], ["points.id"], name=op.f("fk_samples_point_id_points")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_samples")),
    )
    op.create_index("ix_samples_point_id_at", "samples", ["point_id", "at"])
    op.create_index(op.f("ix_samples_place"), "samples", ["place"])


def downgrade() -> None:
    """Nothing is lost by it: the directories have it all."""
    for table in ("samples", "digests", "points"):
        op.drop_table(table)
