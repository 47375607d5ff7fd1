"""OpenTelemetry: one event for the verdict and one for each finding, as log records with an event name, over OTLP by HTTP.

OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_HEADERS, OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES count. The event of the
verdict carries the JSON report as an attribute where it is small enough for a collector.
"""

from __future__ import annotations

from collections.abc import Iterator

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import (
    InMemoryLogRecordExporter,
    LogRecordExporter,
    LogRecordExportResult,
    SimpleLogRecordProcessor,
)
from opentelemetry.sdk.resources import SERVICE_NAME, Resource

from distdoctor.notify.alert import Alert, Delivery

SEVERITIES = {"error": SeverityNumber.ERROR, "warning": SeverityNumber.WARN}
MOST_RANKS = 1000
LARGEST_BODY = 256 << 10  # bytes of the report; collectors refuse messages of some MiB


def send(delivery: Delivery) -> str:
    """Where it has gone: the address."""
    where = f"{delivery.where.rstrip('/')}/v1/logs" if delivery.where else None
    export(delivery, OTLPLogExporter(endpoint=where) if where else OTLPLogExporter())
    return where or "the address of OTEL_EXPORTER_OTLP_ENDPOINT, or the collector on this host"


def export(delivery: Delivery, exporter: LogRecordExporter) -> None:
    """The events, in one batch.

    OSError: the exporter did not get rid of them.
    """
    kept = InMemoryLogRecordExporter()
    provider = LoggerProvider(_resource())
    provider.add_log_record_processor(SimpleLogRecordProcessor(kept))
    logger = provider.get_logger("distdoctor")
    for record in events(delivery):
        logger.emit(record)
    outcome = exporter.export(kept.get_finished_logs())
    exporter.shutdown()
    provider.shutdown()
    if outcome is not LogRecordExportResult.SUCCESS:
        raise OSError("the collector did not take the events")


def _resource() -> Resource:
    """As the environment names the service, else by our own name."""
    found = Resource.create()
    named = not str(found.attributes.get(SERVICE_NAME, "")).startswith("unknown_service")
    return found if named else found.merge(Resource({SERVICE_NAME: "distdoctor"}))


def events(delivery: Delivery) -> Iterator[LogRecord]:
    """`distdoctor.diagnosis` with the text and the report, then `distdoctor.finding` for each finding."""
    alert = delivery.alert
    yield LogRecord(
        event_name="distdoctor.diagnosis",
        severity_number=SEVERITIES.get(alert.level, SeverityNumber.INFO),
        severity_text=alert.level.upper(),
        body=f"{alert.title}\n{alert.text}",
        attributes={**_of_run(alert), "distdoctor.state": alert.state, **_report(delivery)},
    )
    for one in alert.findings:
        yield LogRecord(
            event_name="distdoctor.finding",
            severity_number=SEVERITIES.get(one.severity, SeverityNumber.INFO),
            severity_text=one.severity.upper(),
            body=one.title,
            attributes={
                **_of_run(alert),
                "distdoctor.code": one.code,
                "distdoctor.slug": one.slug,
                "distdoctor.confidence": one.confidence,
                "distdoctor.ranks": tuple(one.ranks[:MOST_RANKS]),
                "code.file.path": one.path,
                "code.line.number": one.line,
            },
        )


def _of_run(alert: Alert) -> dict[str, str | int]:
    return {"distdoctor.run": alert.name, "distdoctor.world_size": alert.world_size}


def _report(delivery: Delivery) -> dict[str, str]:
    """The JSON report, where it is small."""
    for path in delivery.reports:
        if path.suffix == ".json" and path.stat().st_size <= LARGEST_BODY:
            return {"distdoctor.report": path.read_text("utf-8")}
    return {}
