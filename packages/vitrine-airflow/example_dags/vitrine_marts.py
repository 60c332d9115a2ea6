"""Waits every hour for a mart of the sample cinema that has its own schedule, then refreshes and compares another one.

It needs the connection `vitrine_default`; README.md shows how to create it.
"""

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG

from vitrine_airflow.operators import VitrineReconcileOperator, VitrineRunOperator
from vitrine_airflow.sensors import VitrineFreshnessSensor

with DAG(
    dag_id="vitrine_marts",
    description="Film ratings for the morning report",
    schedule="@hourly",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    tags=["vitrine"],
):
    refresh = VitrineRunOperator(
        task_id="refresh_ratings",
        pipeline="film_rating_agg_full",
        deferrable=True,
        retries=2,
        retry_delay=timedelta(minutes=1),
    )
    compare = VitrineReconcileOperator(task_id="compare_ratings", pipeline="film_rating_agg_full", deferrable=True)
    films = VitrineFreshnessSensor(
        task_id="films_are_fresh",
        pipeline="film_dim_full",
        max_age=timedelta(hours=1),
        deferrable=True,
        timeout=1800,
    )
    films >> refresh >> compare
