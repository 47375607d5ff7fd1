"""`distdoctor runs`: the runs that were recorded here, what came of each, and those that are not needed any more."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
import rich_click

from distdoctor.errors import WrongUse

if TYPE_CHECKING:
    from distdoctor.recording.recording import Job

HEAD = ("run", "began", "ranks", "size", "what came of it")


@dataclass(frozen=True)
class Run:
    """A run folder. `words`: its verdict, as `diagnosis.json` has it."""

    folder: Path
    began: str
    ranks: int
    size: int
    running: bool
    words: str

    @classmethod
    def of(cls, folder: Path) -> Run:
        from distdoctor.recording.trace.run_folder import read_job

        job = read_job(folder)
        stamp = folder.name.partition("-")[0]
        began = f"{stamp[:4]}-{stamp[4:6]}-{stamp[6:8]} {stamp[9:11]}:{stamp[11:13]}" if len(stamp) == 15 else "-"
        size = sum(
            path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file() and not path.is_symlink()
        )
        return cls(folder, began, job.world_size if job else 0, size, bool(job and job.running), _words(folder, job))


def _words(folder: Path, job: Job | None) -> str:
    from distdoctor.errors import UnreadableRecording
    from distdoctor.recording.files import LARGEST_JSON, read_json

    try:
        found = read_json(folder / "diagnosis.json", LARGEST_JSON)
        codes = ", ".join(dict.fromkeys(finding["code"] for finding in found["findings"]))
        return f"{codes}: {found['verdict']}" if codes else str(found["verdict"])
    except (UnreadableRecording, KeyError, TypeError):
        pass
    end = "its end was not seen" if job is not None and job.end_unseen else ""
    return "; ".join(filter(None, (_said_live(folder, job.attempt if job is not None else 0), end))) or "-"


def _said_live(folder: Path, attempt: int) -> str:
    """The first finding of whoever looked at it while it ran; "" where nobody did, or found nothing."""
    from distdoctor.diagnosis.said_live import said_in
    from distdoctor.recording.seen_live import of_attempt, read_seen_live
    from distdoctor.report.verdict import sentence

    seen = of_attempt(read_seen_live(folder).values(), attempt)
    accounts = [said for one in seen if (said := said_in(one.said)) is not None]
    findings = [finding for one in accounts for finding in (*one.stood, *one.told)]
    return f"{findings[0].code}: {sentence(findings[0])}" if findings else ""


MOST_WORDS = 80  # of what came of a run
KEPT = 10  # of the newest, where nobody says how many


@click.command(cls=rich_click.RichCommand)
@click.option("--prune", is_flag=True, help="Remove the older runs; runs in progress stay.")
@click.option("--keep", type=click.IntRange(0), help="With --prune: how many of the newest stay.  [default: 10]")
@click.option("--output-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
def runs(prune: bool, keep: int | None, output_format: str) -> None:
    """List the runs recorded in this working directory, the newest first; `--prune --keep 5` removes the older ones."""
    if keep is not None and not prune:
        raise WrongUse(f"--keep {keep} without --prune removes nothing", way_out=f"Add it: runs --prune --keep {keep}.")
    from distdoctor.launch.new_run_folder import RUNS
    from distdoctor.recording.trace.run_folder import is_run_folder

    folders = (
        [path for path in RUNS.iterdir() if not path.is_symlink() and is_run_folder(path)] if RUNS.is_dir() else []
    )
    found = [Run.of(folder) for folder in sorted(folders, key=lambda path: path.stat().st_mtime, reverse=True)]
    if prune:
        _prune([run for run in found[KEPT if keep is None else keep :] if not run.running])
        return
    if output_format == "json":
        click.echo(json.dumps([_as_json(run) for run in found], indent=1))
        return
    for line in _lines(found):
        click.echo(line)


def _as_json(run: Run) -> dict[str, object]:
    return {**vars(run), "folder": str(run.folder), "verdict": run.words}


def _lines(found: list[Run]) -> list[str]:
    from distdoctor.report.printable import printable
    from distdoctor.report.table import aligned

    if not found:
        return ["no run was recorded here (`distdoctor run train.py` records one)"]
    rows = [
        (
            run.folder.name,
            run.began,
            str(run.ranks),
            _size(run.size),
            "still runs" if run.running else _short(run.words),
        )
        for run in found
    ]
    total = _size(sum(run.size for run in found))
    widest = max(
        len(HEAD[0]), *(len(printable(name)) for name, *_ in rows)
    )  # to the left: it begins with a digit, and is a name
    lines = aligned(
        [
            tuple(one.ljust(widest) if not at else one for at, one in enumerate(map(printable, row)))
            for row in (HEAD, *rows)
        ]
    )
    return [*lines, f"{_counted(len(found))}, {total}; `distdoctor runs --prune --keep N` keeps the newest N"]


def _short(words: str) -> str:
    return words if len(words) <= MOST_WORDS else f"{words[: MOST_WORDS - 1]}…"


def _counted(number: int) -> str:
    return f"{number} run{'' if number == 1 else 's'}"


def _size(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"


def _prune(old: list[Run]) -> None:
    from distdoctor.cli import deliver

    for run in old:
        try:
            shutil.rmtree(run.folder)
        except OSError as trouble:
            raise WrongUse(
                f"{run.folder} cannot be removed: {trouble.strerror}", way_out="Remove it by hand."
            ) from trouble
    deliver.notice(f"{_counted(len(old))} removed, {_size(sum(run.size for run in old))}")
