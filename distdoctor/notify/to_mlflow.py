"""MLflow: tags, the alert as a note and the report as artifacts; of the run in MLFLOW_RUN_ID, otherwise of a run of its own.

MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME count. A run of the training keeps its note and its state.
"""

from __future__ import annotations

import os

import mlflow

from distdoctor.notify.alert import Alert, Delivery


def send(delivery: Delivery) -> str:
    """Where it has gone: the run and the store."""
    client = mlflow.MlflowClient()
    training = os.environ.get("MLFLOW_RUN_ID")
    run = training or _own_run(client, delivery)
    for name, value in _tags(delivery.alert).items():
        client.set_tag(run, name, value)
    for path in delivery.reports:
        client.log_artifact(run, str(path), "distdoctor")
    client.log_text(run, delivery.alert.text, "distdoctor/alert.txt")
    if training is None:
        client.set_tag(run, "mlflow.note.content", f"{delivery.alert.title}\n\n```\n{delivery.alert.text}\n```")
        client.set_terminated(run)
    return f"run {run} in {mlflow.get_tracking_uri()}"


def _own_run(client: mlflow.MlflowClient, delivery: Delivery) -> str:
    name = delivery.where or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "distdoctor"
    experiment = client.get_experiment_by_name(name)
    found = experiment.experiment_id if experiment is not None else client.create_experiment(name)
    run = client.create_run(found, run_name=f"distdoctor {delivery.alert.name}")
    return str(run.info.run_id)


def _tags(alert: Alert) -> dict[str, str]:
    codes = " ".join(dict.fromkeys(one.code for one in alert.findings))
    return {
        "distdoctor.alert": alert.title,
        "distdoctor.level": alert.level,
        "distdoctor.state": alert.state,
        "distdoctor.codes": codes,
    }
