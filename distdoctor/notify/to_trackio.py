"""Trackio: a run of its own with an alert and the report as an artifact. TRACKIO_DIR and its webhooks count."""

from __future__ import annotations

import trackio

from distdoctor.notify.alert import Delivery

LEVELS = {"error": trackio.AlertLevel.ERROR, "warning": trackio.AlertLevel.WARN, "info": trackio.AlertLevel.INFO}


def send(delivery: Delivery) -> str:
    """Where it has gone: the project, the run and the version of the artifact."""
    alert, project = delivery.alert, delivery.where or "distdoctor"
    config = {"state": alert.state, "world_size": alert.world_size}
    run = trackio.init(project, config=config, embed=False, auto_log_gpu=False, auto_log_cpu=False)
    trackio.alert(alert.title, alert.text, level=LEVELS[alert.level])
    report = trackio.Artifact("distdoctor-report", "report", description=alert.summary)
    for path in delivery.reports:
        report.add_file(str(path))
    kept = trackio.log_artifact(report)
    trackio.finish()
    return f"project {project}, run {run.name}, {kept.name}:{kept.version}"
