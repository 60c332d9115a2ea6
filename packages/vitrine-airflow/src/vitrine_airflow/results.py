"""What a task makes of a request that has ended: values for XCom, or the sentence with which it fails."""

from typing import Any

from vitrine_airflow.answers import Request, Run
from vitrine_airflow.errors import Failed


def counts(request: Request) -> dict[str, Any]:
    """The figures of the run; Failed with the pipeline's own sentence."""
    run = _successful_run(request)
    return {"request_id": request.id, "run_id": run.id, "kind": run.kind, "seconds": run.seconds, **run.counts}


def comparison(request: Request) -> dict[str, Any]:
    """The number of rows on both sides; Failed if the mart differs from its source."""
    run = _successful_run(request)
    compared = run.comparison
    if compared is None:
        raise Failed(f"the comparison of pipeline '{request.pipeline}' has no result; request it again")
    if not compared.equal:
        rows = f"{compared.source_rows} rows in the source, {compared.target_rows} in the mart"
        if compared.source_rows == compared.target_rows:
            rows = f"{compared.source_rows} rows on both sides, but other values"
        raise Failed(
            f"the mart of pipeline '{request.pipeline}' differs from its source: {rows}; `vitrine reconcile"
            f" {request.pipeline}` shows more, and a full run corrects the mart"
        )
    return {
        "request_id": request.id,
        "run_id": run.id,
        "equal": True,
        "source_rows": compared.source_rows,
        "target_rows": compared.target_rows,
    }


def _successful_run(request: Request) -> Run:
    run = request.run
    if run is None or (request.state == "failed" and run.error_code is None):
        raise Failed(f"pipeline '{request.pipeline}' failed; `vitrine status {request.pipeline}` shows why")
    if request.state == "failed":
        raise Failed(f"pipeline '{request.pipeline}' failed with {run.error_code} in run {run.id}: {run.error_message}")
    return run
