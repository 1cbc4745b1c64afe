"""Alembic migrations; shipped in the package and run when the service starts."""
