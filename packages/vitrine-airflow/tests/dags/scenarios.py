"""One DAG for each way to use an operator; `conf` of a DAG run says which pipeline and which connection."""

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG

from vitrine_airflow.operators import VitrineReconcileOperator, VitrineRunOperator
from vitrine_airflow.sensors import VitrineFreshnessSensor

PARAMS: Any = {
    "pipeline": "",
    "connection": "vitrine_default",
    "mode": "",
    "from": "2000-01-01",
    "to": "2100-01-01",
}
COMMON: Any = {"pipeline": "{{ params.pipeline }}", "vitrine_conn_id": "{{ params.connection }}"}


def dag(name: str) -> DAG:
    return DAG(dag_id=name, schedule=None, params=PARAMS, max_active_runs=4)


for suffix, deferrable in (("", False), ("_deferred", True)):
    with dag(f"run{suffix}"):
        VitrineRunOperator(task_id="task", deferrable=deferrable, mode="{{ params.mode }}", **COMMON)
    with dag(f"cancel{suffix}"):
        VitrineRunOperator(task_id="task", deferrable=deferrable, cancel_on_kill=True, **COMMON)
    with dag(f"fresh{suffix}"):
        VitrineFreshnessSensor(
            task_id="task", deferrable=deferrable, max_age=timedelta(hours=1), poke_interval=0.5, timeout=120, **COMMON
        )
    with dag(f"reconcile{suffix}"):
        VitrineReconcileOperator(task_id="task", deferrable=deferrable, **COMMON)

with dag("retry"):
    VitrineRunOperator(task_id="task", retries=1, retry_delay=timedelta(seconds=0), **COMMON)
with dag("backfill"):
    VitrineRunOperator(task_id="task", backfill_from="{{ params['from'] }}", backfill_to="{{ params.to }}", **COMMON)
