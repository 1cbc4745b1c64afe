"""Schedules, what came of them, and whom to tell."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "webhooks",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("url", sa.String(length=2000), nullable=False),
        sa.Column("events", sa.JSON(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("secret", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.Column("created_by", sa.String(length=100), nullable=False),
        sa.Column("deleted_at", sa.DateTime(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhooks")),
    )
    op.create_table(
        "schedules",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("cron", sa.String(length=200), nullable=True),
        sa.Column("every_s", sa.Float(), nullable=True),
        sa.Column("at", sa.DateTime(), nullable=True),
        sa.Column("timezone", sa.String(length=64), nullable=False),
        sa.Column("document", sa.JSON(), nullable=False),
        sa.Column("overlap", sa.String(length=16), nullable=False),
        sa.Column("misfire_grace_s", sa.Float(), nullable=False),
        sa.Column("stale_after_s", sa.Float(), nullable=True),
        sa.Column("base", sa.String(length=100), nullable=True),
        sa.Column("webhook_id", sa.String(length=32), nullable=True),
        sa.Column("paused_at", sa.DateTime(), nullable=True),
        sa.Column("paused_reason", sa.Text(), nullable=True),
        sa.Column("next_due", sa.DateTime(), nullable=True),
        sa.Column("stale_told_at", sa.DateTime(), nullable=True),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.Column("created_by", sa.String(length=100), nullable=False),
        sa.ForeignKeyConstraint(["webhook_id"], ["webhooks.id"], name=op.f("fk_schedules_webhook_id_webhooks")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_schedules")),
        sa.UniqueConstraint("name", name=op.f("uq_schedules_name")),
    )
    op.create_index(op.f("ix_schedules_next_due"), "schedules", ["next_due"])
    op.create_table(
        "firings",
        sa.Column("schedule_id", sa.String(length=32), nullable=False),
        sa.Column("due_at", sa.DateTime(), nullable=False),
        sa.Column("fired_at", sa.DateTime(), nullable=False),
        sa.Column("outcome", sa.String(length=16), nullable=False),
        sa.Column("run_id", sa.String(length=32), nullable=True),
        sa.Column("detail", sa.Text(), nullable=True),
        sa.Column("compared_at", sa.DateTime(), nullable=True),
        sa.Column("comparison", sa.JSON(), nullable=True),
        sa.ForeignKeyConstraint(["schedule_id"], ["schedules.id"], name=op.f("fk_firings_schedule_id_schedules")),
        sa.PrimaryKeyConstraint("schedule_id", "due_at", name=op.f("pk_firings")),
    )
    op.create_index(op.f("ix_firings_run_id"), "firings", ["run_id"])
    op.create_table(
        "deliveries",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("webhook_id", sa.String(length=32), nullable=False),
        sa.Column("event", sa.String(length=40), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.Column("next_at", sa.DateTime(), nullable=True),
        sa.Column("delivered_at", sa.DateTime(), nullable=True),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["webhook_id"], ["webhooks.id"], name=op.f("fk_deliveries_webhook_id_webhooks")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_deliveries")),
    )
    op.create_index("ix_deliveries_state_next_at", "deliveries", ["state", "next_at"])
    op.create_index("ix_deliveries_webhook_id_created_at", "deliveries", ["webhook_id", "created_at"])


def downgrade() -> None:
    for table in ("deliveries", "firings", "schedules", "webhooks"):
        op.drop_table(table)
