"""Weights & Biases: a run of its own with an alert (mail, Slack) and the report as an artifact.

The run of the training is left alone: a second process that resumed it would end it. WANDB_PROJECT, WANDB_MODE, WANDB_DIR and
WANDB_RUN_GROUP count.
"""

from __future__ import annotations

import os

import wandb

from distdoctor.notify.alert import Delivery

LEVELS = {"error": "ERROR", "warning": "WARN", "info": "INFO"}


def send(delivery: Delivery) -> str:
    """Where it has gone: the page of the run, or its folder offline."""
    alert = delivery.alert
    training = os.environ.pop("WANDB_RUN_ID", None)
    run = wandb.init(
        project=delivery.where or os.environ.get("WANDB_PROJECT") or "distdoctor",
        name=f"distdoctor {alert.name}",
        job_type="distdoctor",
        config={"state": alert.state, "world_size": alert.world_size, "training_run": training},
        settings=wandb.Settings(silent=True, console="off", x_disable_stats=True, disable_git=True),
    )
    report = wandb.Artifact("distdoctor-report", "report", description=alert.summary)
    for path in delivery.reports:
        report.add_file(str(path))
    run.log_artifact(report)
    run.summary.update({"state": alert.state, "findings": alert.summary})
    run.alert(alert.title, alert.text, level=LEVELS[alert.level])
    where = (run.url if not run.offline else None) or run.dir
    run.finish()
    return str(where)
