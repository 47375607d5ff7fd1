"""`--notify` through the real libraries, each in its offline mode; one that is missing is a line, never another exit code."""

from __future__ import annotations

import os
import tarfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from sick import diagnosis_of

from distdoctor.cli.notifying import Notifier
from distdoctor.cli.settings import Settings
from distdoctor.diagnosis.diagnosis import Diagnosis
from distdoctor.errors import WrongUse
from distdoctor.notify.alert import LONGEST_TITLE, Delivery, alert_of, is_worth_an_alert
from distdoctor.notify.send import send
from distdoctor.notify.ways import WAYS, Channel, Target, targets_of
from distdoctor.recording.recording import Job

HUNG = diagnosis_of("DD105")
GOLDEN = Path(__file__).parent.parent / "recording" / "golden" / "4" / "hang.tar.xz"
TITLE = "distdoctor: DD105 "
FIX = "fix "


class Collector(BaseHTTPRequestHandler):
    """Takes what is posted, as an OpenTelemetry collector does."""

    taken: list[tuple[str, bytes]] = []  # noqa: RUF012 - of the one that a test starts

    def do_POST(self) -> None:
        self.taken.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *words: object) -> None:
        return


@pytest.fixture(scope="module")
def collector() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def notified(tmp_path_factory: pytest.TempPathFactory, collector: str) -> Iterator[dict[str, list[str]]]:
    """What was said and warned when all ways that are installed were taken at once; the folder is the working directory."""
    folder = tmp_path_factory.mktemp("notified")
    said: dict[str, list[str]] = {"said": [], "warned": []}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("WANDB_MODE", "offline")
        patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        patch.setenv("MLFLOW_TRACKING_URI", f"file://{folder}/store")
        patch.setenv("TRACKIO_DIR", str(folder / "trackio"))
        words = ["wandb", "mlflow:checks", "trackio:checks", "tensorboard:boards", f"otel:{collector}"]
        targets = [target for target in targets_of(words) if not target.missing]
        send(HUNG, "nightly", targets, said["said"].append, said["warned"].append)
        yield said


def _require(way: str) -> None:
    if missing := Target(WAYS[way]).missing:
        pytest.skip(missing)


@pytest.mark.job
class TestEachWay:
    """Real libraries in processes of their own."""

    def test_wandb_keeps_the_alert_and_the_report(self, notified: dict[str, list[str]]) -> None:
        _require("wandb")
        assert "notified wandb" in "".join(notified["said"]), notified
        (path,) = Path("wandb").glob("offline-run-*/*.wandb")
        kept = path.read_bytes()
        assert TITLE.encode() in kept
        assert b"report.html" in kept

    def test_mlflow_keeps_tags_and_artifacts(self, notified: dict[str, list[str]]) -> None:
        _require("mlflow")
        import mlflow

        client = mlflow.MlflowClient(os.environ["MLFLOW_TRACKING_URI"])
        experiment = client.get_experiment_by_name("checks")
        assert experiment is not None, notified
        (run,) = client.search_runs([experiment.experiment_id])
        assert run.data.tags["distdoctor.alert"].startswith(TITLE)
        assert FIX in run.data.tags["mlflow.note.content"]
        assert run.info.status == "FINISHED"
        kept = {one.path for one in client.list_artifacts(run.info.run_id, "distdoctor")}
        assert kept == {"distdoctor/report.html", "distdoctor/report.json", "distdoctor/alert.txt"}

    def test_trackio_keeps_the_alert_and_the_report(self, notified: dict[str, list[str]]) -> None:
        _require("trackio")
        from trackio.sqlite_storage import SQLiteStorage

        (alert,) = SQLiteStorage.get_alerts("checks")
        assert alert["title"].startswith(TITLE), notified
        assert FIX in alert["text"]
        assert alert["level"] == "error"
        assert "distdoctor-report:v0" in "".join(notified["said"])

    def test_tensorboard_shows_the_text_beside_the_report(self, notified: dict[str, list[str]]) -> None:
        _require("tensorboard")
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        folder = Path("boards/distdoctor-nightly")
        events = EventAccumulator(str(folder)).Reload()
        (shown,) = events.Tensors("distdoctor/text_summary")
        assert TITLE.encode() in shown.tensor_proto.string_val[0], notified
        assert "Content-Security-Policy" in (folder / "report.html").read_text("utf-8")

    def test_a_collector_gets_the_events(self, notified: dict[str, list[str]]) -> None:
        _require("otel")
        ((path, body),) = Collector.taken
        assert path == "/v1/logs", notified
        assert b"distdoctor.diagnosis" in body
        assert b"distdoctor.finding" in body

    def test_what_cannot_be_reached_is_one_line_and_no_other_exit_code(
        self, monkeypatch: pytest.MonkeyPatch, say: Callable[..., Any], tmp_path: Path
    ) -> None:
        _require("otel")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
        with tarfile.open(GOLDEN) as archive:
            archive.extractall(tmp_path / "golden", filter="data")

        said = say("report", "golden", "--notify", "otel:http://127.0.0.1:9")

        assert said.code == 0
        assert said.err == "distdoctor: otel was not notified: OSError: the collector did not take the events\n"


def test_events_carry_what_is_counted(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="opentelemetry's exporter is not installed")
    from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter

    from distdoctor.notify.to_otel import export

    (tmp_path / "report.json").write_text("{}")
    kept = InMemoryLogRecordExporter()
    export(Delivery(alert_of(HUNG, "nightly"), tmp_path), kept)

    verdict, finding = (one.log_record for one in kept.get_finished_logs()[:2])
    assert (verdict.event_name, verdict.severity_text) == ("distdoctor.diagnosis", "ERROR")
    assert verdict.attributes["distdoctor.report"] == "{}"
    assert (finding.event_name, finding.attributes["distdoctor.code"]) == ("distdoctor.finding", "DD105")
    assert finding.attributes["distdoctor.ranks"] == HUNG.findings[0].ranks


def test_an_alert_says_what_where_and_how_to_fix_it() -> None:
    alert = alert_of(HUNG, "nightly")

    assert alert.title.startswith(TITLE)
    assert len(alert.title) <= LONGEST_TITLE
    assert alert.text.splitlines()[0].startswith("DD105 error")
    assert FIX in alert.text
    assert alert.level == "error"


def test_a_healthy_run_raises_no_alert() -> None:
    healthy = Diagnosis(Job(("train.py",), world_size=2, exit_code=0), examined=("DD101",), world_size=2)

    assert not is_worth_an_alert(healthy)
    assert alert_of(healthy, "nightly").level == "info"
    assert is_worth_an_alert(Diagnosis(Job(("train.py",), world_size=2, exit_code=1)))


def test_a_library_that_is_missing_is_one_line() -> None:
    warned: list[str] = []
    gone = Target(Channel("gone", "no_such_library.at.all", "no-such-library", "", ""))

    send(HUNG, "nightly", [gone], warned.append, warned.append)

    assert warned == [
        "gone was not notified: no_such_library.at.all is not installed (pip install no-such-library)",
    ]


def test_a_process_that_dies_is_one_line() -> None:
    """Here its own code is missing, so it cannot start to send."""
    warned: list[str] = []

    send(HUNG, "nightly", [Target(Channel("gone", "json", "", "", ""))], warned.append, warned.append)

    assert warned == ["gone was not notified: KeyError: 'gone'"]


def test_an_unknown_way_is_refused_before_anything_starts(say: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("raise SystemExit('a rank was started')\n")

    said = say("run", "--notify", "pigeon", "train.py")

    assert said.code == 2
    assert "--notify pigeon: there is no such way to notify" in said.err
    assert "wandb[:PROJECT]" in said.err


def test_settings_name_the_ways_too() -> None:
    Notifier.of(Settings(notify=["wandb:mine", "otel"])).say_what_is_missing()
    with pytest.raises(WrongUse, match="pigeon"):
        Notifier.of(Settings(notify=["pigeon"]))
