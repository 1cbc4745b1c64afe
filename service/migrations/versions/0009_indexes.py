"""Indexes for what lists of runs are filtered by, and for how long ago a schedule last did well."""

from __future__ import annotations

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

INDEXES = {
    "ix_runs_commit": ["commit"],
    "ix_runs_created_at": ["created_at"],
    "ix_runs_schedule_id_state_finished_at": ["schedule_id", "state", "finished_at"],
    "ix_runs_workload_seq": ["workload", "seq"],
}


def upgrade() -> None:
    for name, columns in INDEXES.items():
        op.create_index(name, "runs", columns)


def downgrade() -> None:
    for name in INDEXES:
        op.drop_index(name, "runs")
