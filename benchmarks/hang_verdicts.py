"""Every planted illness of the DD1xx family: what is said, about whom, at which line, with which fix, and how soon.

    python benchmarks/hang_verdicts.py [--nproc 2] [--only skipped-collective ...] [--attach | --attach-jobs]

Live: seconds from the last sign of life of any rank (the job is stuck from then on) to the verdict on standard error, while the
job still hangs; 0 where the job did not hang and was judged at its end. With --attach the same illnesses are planted in a job
that nobody records, and `hang-dump` looks at it from outside; its seconds are those of the whole command. With --attach-jobs the
hangs of the tests (tests/jobs/hang.py), under plain torchrun.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from distdoctor import plugins
from distdoctor.offers import Drill
from distdoctor.recording.trace.run_folder import read_run

DISTDOCTOR = (sys.executable, "-m", "distdoctor")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "CI": "true"}
LIMIT = 120.0
JOBS = (
    "skips_a_call", "stops_early", "swallows_an_exception", "saves_alone", "leaves_early", "prints_a_property",
    "collects_garbage", "logs_in_a_callback", "averages_under_join", "gathers_shards_alone", "receives_first", "wrong_tag",
    "makes_a_group_alone", "two_groups", "healthy",
)  # fmt: skip


def planted(drill: Drill, nproc: int) -> list[str]:
    strategy = "ddp" if "ddp" in drill.strategies or not drill.strategies else drill.strategies[0]
    ranks = str(max(nproc, drill.needs_ranks))
    return ["--strategy", strategy, "--nproc", ranks, "--fire-drill", drill.slug, "--no-evaluate"]


def live(drill: Drill, nproc: int, folder: Path) -> tuple[dict[str, Any], float]:
    """(the first finding, seconds from the standstill to its verdict; 0 where it was made after the end)."""
    words = [
        *DISTDOCTOR,
        "run",
        "--output-format",
        "json",
        "--run-dir",
        str(folder),
        "--on-hang",
        "abort",
        "--hang-after",
        "30",  # seconds: what is not proven would stand until the group's own timeout
        *planted(drill, nproc),
    ]
    job = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    told: list[int] = []

    def listen() -> None:
        assert job.stderr is not None
        for line in job.stderr:
            if "found while the job runs" in line:
                told.append(time.time_ns())

    listener = threading.Thread(target=listen)
    listener.start()
    assert job.stdout is not None
    said = job.stdout.read()
    job.wait()
    listener.join()
    report = json.loads(said)
    lives = [
        int(rows[-1][name]) + log.monotonic_to_wall_ns
        for log in read_run(folder).ranks.values()
        for rows, name in ((log.calls, "entered_ns"), (log.steps, "at_ns"), (log.events, "at_ns"))
        if len(rows)
    ]
    hung = any(finding["code"].startswith("DD1") for finding in report["findings"]) and bool(told)
    return report["findings"][0], max(0.0, (told[0] - max(lives)) / 1e9) if hung else 0.0


def attached(drill: Drill, nproc: int, folder: Path) -> tuple[dict[str, Any] | None, float]:
    """The same without a recording; None when the job ends by itself."""
    return looked_at([*DISTDOCTOR, "run", "--off", "--run-dir", str(folder), *planted(drill, nproc)])


def attached_job(name: str, nproc: int) -> tuple[dict[str, Any] | None, float]:
    """A hang of the tests under plain torchrun."""
    torchrun = [str(Path(sys.executable).with_name("torchrun")), "--standalone", f"--nproc-per-node={nproc}"]
    return looked_at([*torchrun, str(Path(__file__).with_name("hang_job.py")), name])


def looked_at(words: list[str]) -> tuple[dict[str, Any] | None, float]:
    """(the first finding of hang-dump, its seconds) once the job stands still; None when it ends by itself."""
    job = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ENVIRONMENT)
    try:
        since = time.monotonic()
        idle_for = 0.0
        while job.poll() is None and time.monotonic() - since < LIMIT and idle_for < 12:
            idle_for = idle_for + 1 if _is_idle(job.pid) else 0.0
        if job.poll() is not None:
            return None, 0.0
        since = time.monotonic()
        look = [*DISTDOCTOR, "hang-dump", "--pid", str(job.pid), "--json"]
        done = subprocess.run(look, capture_output=True, text=True, env=ENVIRONMENT, timeout=LIMIT, check=False)
        seconds = time.monotonic() - since
        findings = json.loads(done.stdout)["findings"] if done.stdout.startswith("{") else []
        return (findings[0] if findings else {"code": "none", "ranks": [], "place": {}, "remedies": []}), seconds
    finally:
        _end(job)


def _is_idle(pid: int) -> bool:
    """Whether the ranks did next to nothing for a second."""
    ranks = psutil.Process(pid).children(recursive=True)
    if len(ranks) < 2:
        time.sleep(1)
        return False
    before = [sum(child.cpu_times()[:2]) for child in ranks if child.is_running()]
    time.sleep(1)
    after = [sum(child.cpu_times()[:2]) for child in ranks if child.is_running()]
    return len(after) == len(before) and max((b - a for a, b in zip(before, after, strict=True)), default=0) < 0.03


def _end(job: subprocess.Popen[bytes]) -> None:
    for process in (
        [*psutil.Process(job.pid).children(recursive=True), psutil.Process(job.pid)] if job.poll() is None else []
    ):
        process.kill()
    job.wait()


def row(slug: str, finding: dict[str, Any] | None, seconds: float) -> str:
    if finding is None:
        return f"| {slug} | ends by itself | | | | |"
    place = finding["place"] or {}
    line = f"{Path(place.get('path') or '').name}:{place.get('line')}" if place.get("path") else ""
    fix = (
        (finding["remedies"][0].get("change") or finding["remedies"][0]["what"]).splitlines()[0]
        if finding["remedies"]
        else ""
    )
    ranks = ",".join(map(str, finding["ranks"]))
    return f"| {slug} | {finding['code']} {finding.get('confidence', '')} | {ranks} | {line} | {fix[:70]} | {seconds:.1f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nproc", type=int, default=2)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--attach", action="store_true")
    parser.add_argument("--attach-jobs", action="store_true")
    options = parser.parse_args()
    print("| planted | verdict | ranks | line | fix | seconds |\n|---|---|---|---|---|---|", flush=True)
    if options.attach_jobs:
        for name in options.only or JOBS:
            print(row(name, *attached_job(name, options.nproc)), flush=True)
        return
    drills = [
        d for d in plugins.load().drills.values() if d.code.startswith("DD1") and d.slug in (options.only or [d.slug])
    ]
    for drill in drills:
        with tempfile.TemporaryDirectory() as folder:
            look = attached if options.attach else live
            print(row(drill.slug, *look(drill, options.nproc, Path(folder) / "run")), flush=True)


if __name__ == "__main__":
    main()
