"""Executed in the environment of dlt: one table by Arrow and ADBC, the fastest documented way to Postgres."""
# pyright: basic, reportMissingImports=false

import sys

import dlt
from dlt.sources.sql_database import sql_table

disposition, source, target, source_table, target_table, folder = sys.argv[1:]
schema, table = source_table.split(".")
dataset, name = target_table.split(".")
target = target.replace("postgres@", "postgres:unused@")  # dlt requires a password; the server needs none

resource = sql_table(
    source.replace("postgresql://", "postgresql+psycopg2://"),
    table=table,
    schema=schema,
    backend="connectorx",
    backend_kwargs={"return_type": "arrow"},
    incremental=dlt.sources.incremental("modified"),
    primary_key="id",
)
pipeline = dlt.pipeline(
    pipeline_name=name, pipelines_dir=folder, destination=dlt.destinations.postgres(target), dataset_name=dataset
)
pipeline.run(resource, table_name=name, write_disposition=disposition, primary_key="id", loader_file_format="parquet")
