"""How often distdoctor is right, by how sure it says it is, on programs whose illness is known.

    python benchmarks/calibration.py FOLDER [--only NAME ...] [--kind sick fixed healthy] [--limit 90] [--save results.jsonl]
        [--at-once 2] [--budget 300] [--keep RUNS] [--attach] [--by check-grads]

FOLDER holds programs and a `manifest.json`, a list of
    {"name", "file", "nproc", "args", "env", "launcher": "torchrun" | "python", "kind": "sick" | "fixed" | "healthy",
     "codes": accepted codes, "ranks": the odd ranks ([]: not asked), "line": the deciding line, "lines": of programs of several
     files every line that decides, `data.py:27`, "tolerated": codes that are
     true of a healthy program, "part2": {"args", "nproc"} a second run in the same folder,
     "truth": what is wrong in words, "source": where the idea comes from}.
Of these `name`, `file`, `nproc` and `kind` are needed. `benchmarks/programs/` holds 2,667 such programs, written after public
issues by people who had not read the checks.
Every program runs in a copy of FOLDER, without a terminal, under `distdoctor run --on-hang abort`; one that still stands after
`--limit` seconds is interrupted as by Ctrl-C and judged by what is known then. Its standard input is open and silent, like a
terminal at which nobody sits. With --attach it runs under plain torchrun (or python) instead, and `hang-dump` looks at it from
outside: at a sick one once its processes have rested for `QUIET` seconds, or after `--limit`; at others while they run, every
`QUIET` seconds. Of a sick program the first finding counts that is no note (a note when there is no other); of
the others every finding that is no note is an accusation.

A finding that calls itself undecided says that its ranks disagree, and not which of them is wrong. Where the true ones are among
them its ranks are neither right nor wrong: such findings have a column of their own.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

DISTDOCTOR = (sys.executable, "-m", "distdoctor")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "CI": "true"}
CONFIDENCES = ("certain", "likely", "possible", "none")
PATIENCE = 40.0  # seconds between the interrupt and the report
QUIET = 12.0  # seconds without work of any process; `hang-dump` calls a rank stuck after ten
LOOKS = 3  # at a job that is well


@dataclass
class Result:
    """What was said about one program. `code` is "" where nothing was said; `ended`: it needed no interrupt."""

    name: str
    kind: str
    code: str = ""
    confidence: str = "none"
    ranks: list[int] = field(default_factory=list)
    title: str = ""
    code_right: bool = False
    ranks_right: bool = False
    undecided: bool = False  # both sides are named, the wrong one among them
    line_shown: bool = False
    accusations: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    exit_code: int | None = None
    ended: bool = True
    seconds: float = 0.0
    trouble: str = ""


def judged(case: dict[str, Any], reports: list[dict[str, Any]], result: Result) -> Result:
    """The result, with the findings of these reports compared with what is true of the case."""
    findings = [finding for report in reports for finding in report["findings"]]
    grave = [finding for finding in findings if finding["severity"] != "note"]
    result.others = [f"{f['code']} {f['severity']} {f['confidence']}" for f in findings]
    result.accusations = [
        f"{f['code']} {f['confidence']} {f['ranks']}: {f['title']}"
        for f in grave
        if f["code"] not in case.get("tolerated", [])
    ]
    for first in (grave or findings)[:1]:
        result.code, result.confidence, result.title = first["code"], first["confidence"], first["title"]
        result.ranks = first["ranks"]
        result.code_right = first["code"] in case["codes"]
        result.ranks_right = not case.get("ranks") or sorted(first["ranks"]) == sorted(case["ranks"])
        result.undecided = (
            not result.ranks_right and first.get("undecided", False) and set(case["ranks"]) < set(first["ranks"])
        )
        places = lines_of(first)
        wanted = set(case.get("lines", ()))
        result.line_shown = (
            bool(wanted & places) if wanted else case.get("line") in {int(one.rpartition(":")[2]) for one in places}
        )
    return result


def lines_of(finding: dict[str, Any]) -> set[str]:
    """Every line that the finding points at: `data.py:27`."""
    places = (place for place in (finding["place"], *finding["places"]) if place and place.get("line"))
    return {f"{Path(place['path']).name}:{place['line']}" for place in places}


def command_of(case: dict[str, Any], folder: Path, by: str = "run") -> list[str]:
    """`distdoctor run` for this program, or another of the commands that launch one, into this run folder."""
    options = [by, "--on-hang", "abort", "--output-format", "json", "-o", str(report_of(folder))]
    options += ["--run-dir", str(folder)]
    if case.get("hang_after"):
        options += ["--hang-after", str(case["hang_after"])]
    if case.get("launcher") == "python":
        return [*DISTDOCTOR, *options, "--", sys.executable, case["file"], *case["args"]]
    return [*DISTDOCTOR, *options, "--nproc", str(case["nproc"]), case["file"], *case["args"]]


def report_of(folder: Path) -> Path:
    """Where the report of this run folder is written: beside it, for distdoctor makes the folder itself."""
    return folder.with_name(f"{folder.name}.json")


def run(case: dict[str, Any], options: argparse.Namespace) -> Result:
    """Run one program, all its parts, and judge what was said."""
    result = Result(case["name"], case["kind"])
    since = time.monotonic()
    limit, hang_after = options.limit, options.hang_after if case["kind"] == "sick" else None
    with contextlib.ExitStack() as stack:
        place = options.keep / case["name"] if options.keep else stack.enter_context(tempfile.TemporaryDirectory())
        work = Path(place) / "work"
        shutil.copytree(options.folder, work, ignore=shutil.ignore_patterns(".*", "__pycache__"), dirs_exist_ok=True)
        reports = []
        for number, part in enumerate([case, *([case["part2"]] if case.get("part2") else [])]):
            folder = Path(place) / f"run{number}"
            if options.attach:
                reports += _looked_at({**case, **part}, work, folder, limit, result)
                continue
            this = {**case, **part, "hang_after": hang_after, "by": options.by}
            done = _finished(this, work, folder, limit, result)
            if done is not None:
                reports.append(done)
    result.seconds = round(time.monotonic() - since, 1)
    return judged(case, reports, result)


def _finished(case: dict[str, Any], work: Path, folder: Path, limit: float, result: Result) -> dict[str, Any] | None:
    """The report of one command, None where there is none; it never outlives this call."""
    log = work.parent / "output.txt"
    with log.open("w") as output:
        job = subprocess.Popen(
            command_of(case, folder, case["by"]),
            cwd=work,
            env={**ENVIRONMENT, **case["env"]},
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            result.exit_code = job.wait(limit)
        except subprocess.TimeoutExpired:
            result.ended = False
            job.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                result.exit_code = job.wait(PATIENCE)
        finally:
            _end(job)
    try:
        return dict(json.loads(report_of(folder).read_text()))
    except (OSError, ValueError):
        result.trouble = log.read_text(errors="replace")[-400:]
        return None


def _looked_at(case: dict[str, Any], work: Path, folder: Path, limit: float, result: Result) -> list[dict[str, Any]]:
    """The reports of `hang-dump` on this program, which nobody records. An empty list: it ended before it could be looked at."""
    launcher = [sys.executable]
    if case.get("launcher") != "python":
        launcher += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(case["nproc"])]
    with (work.parent / "output.txt").open("w") as output:
        job = subprocess.Popen(
            [*launcher, case["file"], *case["args"]],
            cwd=work,
            env={**ENVIRONMENT, **case["env"]},
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            looks = 1 if case["kind"] == "sick" else LOOKS
            reports = []
            for look in range(looks):
                if not _rests(job, limit if case["kind"] == "sick" else QUIET):
                    break
                report = report_of(folder.with_name(f"{folder.name}-{look}"))
                dump = [*DISTDOCTOR, "hang-dump", "--pid", str(job.pid), "--output-format", "json", "-o", str(report)]
                done = subprocess.run(dump, cwd=work, env=ENVIRONMENT, capture_output=True, text=True, check=False)
                result.exit_code = done.returncode
                with contextlib.suppress(OSError, ValueError):
                    reports.append(dict(json.loads(report.read_text())))
                if job.poll() is not None:  # it ended while it was looked at
                    return reports[:-1] if case["kind"] == "sick" else reports
            result.ended = job.poll() is not None
            return reports
        finally:
            _end(job)


def _rests(job: subprocess.Popen[bytes], limit: float) -> bool:
    """Wait until none of its processes has worked for `QUIET` seconds, or until the limit; False when it ends before."""
    until, rested, worked = time.monotonic() + limit, time.monotonic(), 0.0
    while time.monotonic() < until:
        time.sleep(1.0)
        if job.poll() is not None:
            return False
        now = _cpu_seconds(job.pid)
        if now - worked > 0.05:  # launchers and loaders look around while they wait
            rested, worked = time.monotonic(), now
        elif time.monotonic() - rested > QUIET:
            break
    return True


def _cpu_seconds(pid: int) -> float:
    total = 0.0
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total += times.user + times.system
    return total


def _end(job: subprocess.Popen[bytes]) -> None:
    if job.poll() is not None:
        return
    for process in (*psutil.Process(job.pid).children(recursive=True), psutil.Process(job.pid)):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    job.wait()


def line(result: Result) -> str:
    """One row of the table of programs."""
    if result.kind == "sick":
        ranks = "ranks" if result.ranks_right else "undecided" if result.undecided else "RANKS?"
        verdict = f"{'code' if result.code_right else 'CODE?'} {ranks}"
        verdict += " line" if result.line_shown else ""
    else:
        verdict = "accused: " + "; ".join(result.accusations)[:150] if result.accusations else "clean"
        verdict = "no report" if result.trouble else verdict
    stood = "" if result.ended else " interrupted"
    said = f"{result.code or 'nothing'} {result.confidence} {result.ranks}"
    return f"{result.name:32} {said:34} {verdict:18} exit {result.exit_code} {result.seconds:.0f} s{stood} {result.trouble}"


def summary(results: list[Result]) -> str:
    """Two tables: of the sick programs, how often each confidence was right; of the others, how many were accused."""
    rows = ["| said | of sick programs | code right | ranks right | both | code right, ranks undecided |"]
    rows.append("|---|---|---|---|---|---|")
    sick = [result for result in results if result.kind == "sick"]
    for confidence in (*CONFIDENCES, "all"):
        these = [result for result in sick if confidence in (result.confidence, "all")]
        counts = (
            sum(one.code_right for one in these),
            sum(one.ranks_right and bool(one.code) for one in these),
            sum(one.code_right and one.ranks_right for one in these),
            sum(one.code_right and one.undecided for one in these),
        )
        shares = " | ".join(f"{count} ({count / len(these):.0%})" if these else "-" for count in counts)
        rows.append(f"| {confidence} | {len(these)} | {shares} |")
    shown = sum(result.line_shown for result in sick)
    rows += ["", f"deciding line shown: {shown} of {len(sick)}", "", "| programs that are well | run | accused | by |"]
    rows.append("|---|---|---|---|")
    for kind in ("fixed", "healthy"):
        well = [result for result in results if result.kind == kind]
        accused = [result for result in well if result.accusations]
        by = Counter(" ".join(words.split()[:2]) for result in accused for words in result.accusations)
        told = ", ".join(f"{words} x{count}" for words, count in by.most_common())
        rows.append(f"| {kind} | {len(well)} | {len(accused)} | {told} |")
    killed = [
        result.name for result in results if result.kind != "sick" and (result.exit_code == 3 or not result.ended)
    ]
    rows += ["", f"well, and ended as a hang or not over in time: {', '.join(killed) or 'none'}"]
    mute = [result.name for result in results if result.trouble]
    rows.append(f"without a report, so nothing is known of them: {', '.join(mute) or 'none'}")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--kind", nargs="*", default=[])
    parser.add_argument("--limit", type=float, default=90.0)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--hang-after", type=float, help="seconds; of sick programs only")
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--budget", type=float, default=1e9, help="seconds after which no further program is begun")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--by", default="run", choices=["run", "check-grads", "check-data"])
    parser.add_argument("--attach", action="store_true", help="look from outside at a job that nobody records")
    options = parser.parse_args()
    nothing = {"args": [], "env": {}, "codes": [], "ranks": []}
    cases = [{**nothing, **case} for case in json.loads((options.folder / "manifest.json").read_text())]
    cases = [case for case in cases if not options.kind or case["kind"] in options.kind]
    if options.attach:
        cases = [case for case in cases if case["kind"] != "sick" or any(code[:3] == "DD1" for code in case["codes"])]
    cases = [case for case in cases if not options.only or any(case["name"].startswith(o) for o in options.only)]
    print(f"\n{summary(all_results(cases, options))}")


def all_results(cases: list[dict[str, Any]], options: argparse.Namespace) -> list[Result]:
    """What was said about these programs: read from the file where it is there, else by running them."""
    saved = options.save.read_text().splitlines() if options.save and options.save.exists() else []
    by_name = {result.name: result for result in (Result(**json.loads(line)) for line in saved)}
    until = time.monotonic() + options.budget
    writing = threading.Lock()

    def one(case: dict[str, Any]) -> None:
        if time.monotonic() > until:
            return
        result = run(case, options)
        with writing:
            by_name[result.name] = result
            print(line(result), flush=True)
            if options.save:
                with options.save.open("a") as file:
                    file.write(json.dumps(asdict(result)) + "\n")

    with ThreadPoolExecutor(options.at_once) as pool:
        list(pool.map(one, [case for case in cases if case["name"] not in by_name]))
    return [by_name[case["name"]] for case in cases if case["name"] in by_name]


if __name__ == "__main__":
    main()
