"""The queue: runs of several trials, planned when they are submitted, and the services that run them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

# What a trial has of its own from now on, and had of its run before.
OF_RUN = ("scenario", "document", "runtime", "seed", "steps", "commit", "dirty")


def upgrade() -> None:
    op.create_table(
        "services",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("host", sa.String(length=100), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("version", sa.String(length=40), nullable=False),
        sa.Column("url", sa.String(length=200), nullable=False),
        sa.Column("max_active", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.DateTime(), nullable=False),
        sa.Column("heartbeat_at", sa.DateTime(), nullable=False),
        sa.Column("stopped_at", sa.DateTime(), nullable=True),
        sa.Column("trouble", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_services")),
    )
    _extend_runs()
    _extend_trials()
    _give_each_run_a_trial()
    _move_faults_to_trials()


def downgrade() -> None:
    with op.batch_alter_table("faults") as table:
        table.drop_index("ix_faults_delivered_run_id")
        table.drop_index(op.f("ix_faults_run_id"))
        table.drop_constraint(op.f("fk_faults_trial_id_trials"), type_="foreignkey")
        table.drop_constraint(op.f("pk_faults"), type_="primary")
        table.drop_column("trial_id")
        table.create_primary_key(op.f("pk_faults"), ["run_id", "id"])
    with op.batch_alter_table("trials") as table:
        for name in ("scenario", "verdict", "state"):
            table.drop_index(f"ix_trials_{name}_position")
        table.drop_index(op.f("ix_trials_commit"))
        table.drop_constraint(op.f("uq_trials_position"), type_="unique")
        for column in (*OF_RUN, "service_id", "position", "number"):
            table.drop_column(column)
        table.create_index(op.f("ix_trials_state"), ["state"])
    with op.batch_alter_table("runs") as table:
        for name in ("state", "verdict", "scenario", "suite", "schedule_id"):
            table.drop_index(f"ix_runs_{name}_seq")
        for column in ("archived_at", "seeded", "service_id", "schedule_id", "suite"):
            table.drop_column(column)
        table.create_index(op.f("ix_runs_state"), ["state"])
    op.drop_table("services")


def _extend_runs() -> None:
    with op.batch_alter_table("runs") as table:
        table.add_column(sa.Column("suite", sa.String(length=200), nullable=True))
        table.add_column(sa.Column("schedule_id", sa.String(length=32), nullable=True))
        table.add_column(sa.Column("service_id", sa.String(length=32), nullable=True))
        table.add_column(sa.Column("seeded", sa.Boolean(), nullable=False, server_default=sa.false()))
        table.add_column(sa.Column("archived_at", sa.DateTime(), nullable=True))
        table.drop_index(op.f("ix_runs_state"))
        for name in ("state", "verdict", "scenario", "suite", "schedule_id"):
            table.create_index(f"ix_runs_{name}_seq", [name, "seq"])
    with op.batch_alter_table("runs") as table:
        table.alter_column("seeded", existing_type=sa.Boolean(), existing_nullable=False, server_default=None)


def _extend_trials() -> None:
    with op.batch_alter_table("trials") as table:
        table.add_column(sa.Column("number", sa.Integer(), nullable=True))
        table.add_column(sa.Column("position", sa.BigInteger(), nullable=True))
        table.add_column(sa.Column("scenario", sa.String(length=200), nullable=True))
        table.add_column(sa.Column("document", sa.JSON(), nullable=True))
        table.add_column(sa.Column("runtime", sa.String(length=64), nullable=True))
        table.add_column(sa.Column("seed", sa.BigInteger(), nullable=True))
        table.add_column(sa.Column("steps", sa.Integer(), nullable=True))
        table.add_column(sa.Column("commit", sa.String(length=64), nullable=True))
        table.add_column(sa.Column("dirty", sa.Boolean(), nullable=True))
        table.add_column(sa.Column("service_id", sa.String(length=32), nullable=True))
        table.alter_column("directory", existing_type=sa.Text(), nullable=True)
        table.drop_index(op.f("ix_trials_state"))
    quote = op.get_bind().dialect.identifier_preparer.quote
    of_run = ", ".join(
        f"{quote(name)} = (SELECT runs.{quote(name)} FROM runs WHERE runs.id = trials.run_id)" for name in OF_RUN
    )
    earlier = "SELECT count(*) FROM trials AS other WHERE other.run_id = trials.run_id AND other.id < trials.id"
    op.execute(f"UPDATE trials SET {of_run}, number = 1 + ({earlier})")
    op.execute("UPDATE trials SET position = number + 1000 * (SELECT seq FROM runs WHERE runs.id = trials.run_id)")


def _give_each_run_a_trial() -> None:
    """Those that have not begun, or never did, had none so far."""
    quote = op.get_bind().dialect.identifier_preparer.quote
    no = sa.false().compile(dialect=op.get_bind().dialect)
    names = ", ".join(quote(name) for name in OF_RUN)
    alike = ", ".join(quote(name) for name in ("state", "verdict", "error", "started_at", "finished_at"))
    op.execute(
        f"INSERT INTO trials (id, run_id, number, position, spawned, {names}, {alike}) "
        f"SELECT id || '-1', id, 1, 1000 * seq + 1, {no}, {names}, {alike} "
        "FROM runs WHERE NOT EXISTS (SELECT 1 FROM trials WHERE trials.run_id = runs.id)"
    )
    with op.batch_alter_table("trials") as table:
        for name, kind in (
            ("number", sa.Integer()),
            ("position", sa.BigInteger()),
            ("scenario", sa.String(length=200)),
            ("document", sa.JSON()),
            ("runtime", sa.String(length=64)),
            ("seed", sa.BigInteger()),
            ("steps", sa.Integer()),
        ):
            table.alter_column(name, existing_type=kind, nullable=False)
        table.create_unique_constraint(op.f("uq_trials_position"), ["position"])
        table.create_index(op.f("ix_trials_commit"), ["commit"])
        for name in ("scenario", "verdict", "state"):
            table.create_index(f"ix_trials_{name}_position", [name, "position"])


def _move_faults_to_trials() -> None:
    with op.batch_alter_table("faults") as table:
        table.add_column(sa.Column("trial_id", sa.String(length=40), nullable=True))
    first = "SELECT min(trials.id) FROM trials WHERE trials.run_id = faults.run_id"
    op.execute(f"UPDATE faults SET trial_id = ({first})")
    with op.batch_alter_table("faults") as table:
        table.alter_column("trial_id", existing_type=sa.String(length=40), nullable=False)
        table.drop_constraint(op.f("pk_faults"), type_="primary")
        table.create_primary_key(op.f("pk_faults"), ["trial_id", "id"])
        table.create_foreign_key(op.f("fk_faults_trial_id_trials"), "trials", ["trial_id"], ["id"])
        table.create_index(op.f("ix_faults_run_id"), ["run_id"])
        table.create_index("ix_faults_delivered_run_id", ["delivered", "run_id"])
