"""Safety: halts, reverts, and the log of who did what."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "halts",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("by", sa.String(length=100), nullable=False),
        sa.Column("at", sa.DateTime(), nullable=False),
        sa.Column("until", sa.DateTime(), nullable=True),
        sa.Column("released_at", sa.DateTime(), nullable=True),
        sa.Column("released_by", sa.String(length=100), nullable=True),
        sa.Column("release_reason", sa.Text(), nullable=True),
        sa.Column("reverts", sa.Integer(), nullable=False),
        sa.Column("withdraws", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_halts")),
    )
    op.create_index(op.f("ix_halts_at"), "halts", ["at"])
    op.create_index(op.f("ix_halts_released_at"), "halts", ["released_at"])
    op.create_table(
        "audit",
        sa.Column("seq", SERIAL, nullable=False),
        sa.Column("at", sa.DateTime(), nullable=False),
        sa.Column("actor", sa.String(length=100), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("action", sa.String(length=40), nullable=False),
        sa.Column("target", sa.String(length=100), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("detail", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_audit")),
    )
    op.create_index(op.f("ix_audit_actor"), "audit", ["actor"])
    op.create_index("ix_audit_action_seq", "audit", ["action", "seq"])
    op.create_index("ix_audit_target_seq", "audit", ["target", "seq"])
    with op.batch_alter_table("runs") as table:
        table.add_column(sa.Column("reason", sa.Text(), nullable=True))
        table.add_column(sa.Column("requested_by", sa.String(length=100), nullable=True))
    with op.batch_alter_table("trials") as table:
        table.add_column(sa.Column("halt_id", sa.String(length=32), nullable=True))
    with op.batch_alter_table("faults") as table:
        table.add_column(sa.Column("requested_by", sa.String(length=100), nullable=True))
        table.add_column(sa.Column("revert_requested_at", sa.DateTime(), nullable=True))
        table.add_column(sa.Column("revert_reason", sa.Text(), nullable=True))
        table.add_column(sa.Column("reverted_at", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("faults") as table:
        for name in ("reverted_at", "revert_reason", "revert_requested_at", "requested_by"):
            table.drop_column(name)
    with op.batch_alter_table("trials") as table:
        table.drop_column("halt_id")
    with op.batch_alter_table("runs") as table:
        table.drop_column("requested_by")
        table.drop_column("reason")
    op.drop_table("audit")
    op.drop_table("halts")
