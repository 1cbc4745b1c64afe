"""The machine of each service, as the history names it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("services") as table:
        table.add_column(sa.Column("fingerprint", sa.String(length=12), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("services") as table:
        table.drop_column("fingerprint")
