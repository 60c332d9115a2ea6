"""Alembic's entry: runs every migration in the one transaction that `store.migrate` hands over."""

from alembic import context

context.configure(connection=context.config.attributes["connection"], version_table_schema="etl")
context.run_migrations()
