"""The first tables: runs, trials, events, samples, faults, recoveries."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    _create_runs()
    _create_trials()
    _create_events()
    _create_read_offsets()
    _create_step_samples()
    _create_faults()
    _create_recoveries()
    _create_idempotency_keys()


def downgrade() -> None:
    for table in (
        "idempotency_keys",
        "recoveries",
        "faults",
        "step_samples",
        "read_offsets",
        "events",
        "trials",
        "runs",
    ):
        op.drop_table(table)


def _create_runs() -> None:
    op.create_table(
        "runs",
        sa.Column("seq", SERIAL, nullable=False),
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("scenario", sa.String(length=200), nullable=False),
        sa.Column("document", sa.JSON(), nullable=False),
        sa.Column("workload", sa.String(length=200), nullable=False),
        sa.Column("runtime", sa.String(length=64), nullable=False),
        sa.Column("nodes", sa.Integer(), nullable=False),
        sa.Column("ranks_per_node", sa.Integer(), nullable=False),
        sa.Column("spares", sa.Integer(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("steps", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("verdict", sa.String(length=16), nullable=True),
        sa.Column("part", sa.String(length=16), nullable=True),
        sa.Column("step", sa.Integer(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("commit", sa.String(length=64), nullable=True),
        sa.Column("dirty", sa.Boolean(), nullable=True),
        sa.Column("cancel_reason", sa.Text(), nullable=True),
        sa.Column("cancelled_at", sa.DateTime(), nullable=True),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.Column("started_at", sa.DateTime(), nullable=True),
        sa.Column("finished_at", sa.DateTime(), nullable=True),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_runs")),
        sa.UniqueConstraint("id", name=op.f("uq_runs_id")),
    )
    with op.batch_alter_table("runs", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_runs_state"), ["state"], unique=False)


def _create_trials() -> None:
    op.create_table(
        "trials",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("run_id", sa.String(length=32), nullable=False),
        sa.Column("directory", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("spawned", sa.Boolean(), nullable=False),
        sa.Column("verdict", sa.String(length=16), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("checks", sa.JSON(), nullable=True),
        sa.Column("first_at", sa.BigInteger(), nullable=True),
        sa.Column("started_at", sa.DateTime(), nullable=True),
        sa.Column("finished_at", sa.DateTime(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_trials_run_id_runs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_trials")),
    )
    with op.batch_alter_table("trials", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_trials_run_id"), ["run_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_trials_state"), ["state"], unique=False)


def _create_events() -> None:
    op.create_table(
        "events",
        sa.Column("id", SERIAL, nullable=False),
        sa.Column("run_id", sa.String(length=32), nullable=False),
        sa.Column("trial_id", sa.String(length=40), nullable=False),
        sa.Column("part", sa.String(length=16), nullable=False),
        sa.Column("kind", sa.String(length=40), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("host", sa.String(length=100), nullable=False),
        sa.Column("boot", sa.String(length=64), nullable=False),
        sa.Column("node", sa.String(length=40), nullable=True),
        sa.Column("worker", sa.String(length=40), nullable=True),
        sa.Column("generation", sa.Integer(), nullable=True),
        sa.Column("rank", sa.Integer(), nullable=True),
        sa.Column("step", sa.Integer(), nullable=True),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_events_run_id_runs")),
        sa.ForeignKeyConstraint(["trial_id"], ["trials.id"], name=op.f("fk_events_trial_id_trials")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
        sqlite_autoincrement=True,
    )
    with op.batch_alter_table("events", schema=None) as batch_op:
        batch_op.create_index("ix_events_run_id_id", ["run_id", "id"], unique=False)
        batch_op.create_index("ix_events_trial_id_kind_step", ["trial_id", "kind", "step"], unique=False)


def _create_read_offsets() -> None:
    op.create_table(
        "read_offsets",
        sa.Column("trial_id", sa.String(length=40), nullable=False),
        sa.Column("path", sa.String(length=300), nullable=False),
        sa.Column("offset", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["trial_id"], ["trials.id"], name=op.f("fk_read_offsets_trial_id_trials")),
        sa.PrimaryKeyConstraint("trial_id", "path", name=op.f("pk_read_offsets")),
    )


def _create_step_samples() -> None:
    op.create_table(
        "step_samples",
        sa.Column("trial_id", sa.String(length=40), nullable=False),
        sa.Column("step", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("rank", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("duration_ns", sa.BigInteger(), nullable=True),
        sa.Column("loss", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["trial_id"], ["trials.id"], name=op.f("fk_step_samples_trial_id_trials")),
        sa.PrimaryKeyConstraint("trial_id", "step", "rank", name=op.f("pk_step_samples")),
    )


def _create_faults() -> None:
    op.create_table(
        "faults",
        sa.Column("run_id", sa.String(length=32), nullable=False),
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=64), nullable=False),
        sa.Column("target", sa.JSON(), nullable=False),
        sa.Column("trigger", sa.JSON(), nullable=False),
        sa.Column("params", sa.JSON(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("live", sa.Boolean(), nullable=False),
        sa.Column("delivered", sa.Boolean(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("detail", sa.Text(), nullable=True),
        sa.Column("requested_at", sa.DateTime(), nullable=False),
        sa.Column("injected_at", sa.BigInteger(), nullable=True),
        sa.Column("worker", sa.String(length=40), nullable=True),
        sa.Column("rank", sa.Integer(), nullable=True),
        sa.Column("pid", sa.Integer(), nullable=True),
        sa.Column("fidelity", sa.String(length=16), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_faults_run_id_runs")),
        sa.PrimaryKeyConstraint("run_id", "id", name=op.f("pk_faults")),
    )


def _create_recoveries() -> None:
    op.create_table(
        "recoveries",
        sa.Column("trial_id", sa.String(length=40), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("generation", sa.Integer(), nullable=True),
        sa.Column("fault_id", sa.String(length=64), nullable=True),
        sa.Column("document", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["trial_id"], ["trials.id"], name=op.f("fk_recoveries_trial_id_trials")),
        sa.PrimaryKeyConstraint("trial_id", "number", name=op.f("pk_recoveries")),
    )


def _create_idempotency_keys() -> None:
    op.create_table(
        "idempotency_keys",
        sa.Column("key", sa.String(length=200), nullable=False),
        sa.Column("route", sa.String(length=300), nullable=False),
        sa.Column("body_hash", sa.String(length=64), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("location", sa.String(length=300), nullable=True),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.PrimaryKeyConstraint("key", "route", name=op.f("pk_idempotency_keys")),
    )
