"""Bring a diagnosis to the user: the report to stdout or a file, notices to stderr, and the exit code."""

from __future__ import annotations

import difflib
import importlib
import os
import shutil
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from distdoctor.cli.loudness import coloured, quiet, verbose
from distdoctor.errors import WrongUse
from distdoctor.report.printable import printable

if TYPE_CHECKING:
    from distdoctor.cli.settings import Settings
    from distdoctor.diagnosis.diagnosis import Diagnosis
    from distdoctor.diagnosis.finding import Finding
    from distdoctor.plugins import Plugins
    from distdoctor.recording.recording import Recording

REPORTERS = {
    "json": "distdoctor.report.json_report",
    "sarif": "distdoctor.report.sarif",
    "junit": "distdoctor.report.junit",
    "github": "distdoctor.report.github",
    "markdown": "distdoctor.report.markdown",
    "html": "distdoctor.report.html",
    "trace": "distdoctor.report.chrome_trace",
    "patch": "distdoctor.report.patch",
}
SUFFIXES = {
    ".json": "json",
    ".sarif": "sarif",
    ".xml": "junit",
    ".html": "html",
    ".htm": "html",
    ".txt": "text",
    ".log": "text",
    ".md": "markdown",
    ".trace": "trace",
    ".patch": "patch",
    ".diff": "patch",
}


def form_by_suffix(asked: str | None, output: Path | None) -> str | None:
    """The format that was asked for, else the one that the name of the file stands for; None where neither says."""
    if asked or output is None:
        return asked
    return SUFFIXES.get(output.suffix.lower()) if not output.name.endswith(".trace.json") else "trace"


def rendered(
    diagnosis: Diagnosis, form: str, plugins: Plugins | None = None, *, known: Collection[Finding] = (), width: int = 0
) -> str:
    """The report in a format that `require_format` let pass; text as wide as the terminal (`width_of`), and short about what is
    `known`: findings that have been shown in full to the same reader."""
    if form == "text":
        from distdoctor.report import text

        return text.render(diagnosis, base=os.getcwd(), known=known, width=width)
    if form in ("sarif", "markdown") and not (plugins and form in plugins.reports):
        from distdoctor.report import markdown, sarif

        in_folder = sarif.render if form == "sarif" else markdown.render
        return in_folder(diagnosis, base=os.getcwd())
    render: Callable[[Diagnosis], str] | None = plugins.reports.get(form) if plugins else None
    if render is None and form in REPORTERS:
        render = importlib.import_module(REPORTERS[form]).render
    assert render is not None, form  # require_format was asked before
    return render(diagnosis)


def step_summary(diagnosis: Diagnosis) -> None:
    """Add the report to the page of the job on GitHub Actions, where this is one. What cannot be written there is no trouble."""
    where = os.environ.get("GITHUB_STEP_SUMMARY")
    if not where:
        return
    from distdoctor.report import markdown

    try:
        with open(where, "a", encoding="utf-8", errors="backslashreplace") as page:
            page.write(markdown.render(diagnosis, base=os.getcwd()) + "\n")
    except OSError as trouble:
        remark(f"GITHUB_STEP_SUMMARY cannot be written: {trouble.strerror}")


def one_reader(one: TextIO, other: TextIO) -> bool:
    """Whether what goes to two streams comes out in one place: on a terminal, or in one file or pipe (`2>&1`)."""
    try:
        ends = {(end.st_dev, end.st_ino) for end in (os.fstat(stream.fileno()) for stream in (one, other))}
    except (OSError, ValueError):  # no file, or closed
        return False
    return len(ends) == 1 or (one.isatty() and other.isatty())


def width_of(stream: TextIO | None, output: Path | None = None) -> int:
    """The columns of the terminal that a text goes to; 0 where it goes elsewhere, and no line is to be broken."""
    if output is not None or stream is None or not stream.isatty():
        return 0
    return max(40, shutil.get_terminal_size().columns)


def require_format(form: str, plugins: Plugins, unnamed: Path | None = None) -> None:
    """WrongUse now, rather than after hours of training, when nobody offers that format.

    `unnamed`: the file that the report goes to, where its suffix alone can say which format is wanted.
    """
    suffix = unnamed.suffix.lower() if unnamed is not None else ""
    if suffix and suffix not in SUFFIXES and form == "text":
        raise WrongUse(
            f"{unnamed} names no report format by its suffix",
            way_out=f"Name the format (--output-format text), or end the file in {', '.join(SUFFIXES)}.",
        )
    known = ["text", *REPORTERS, *plugins.reports]
    if form not in known:
        close = difflib.get_close_matches(form, known, n=1)
        guess = f"Did you mean {close[0]}? " if close else ""
        raise WrongUse(f"there is no report format {form}", way_out=f"{guess}There are {', '.join(known)}.")


def require_folder(output: Path | None) -> None:
    """WrongUse now, rather than after hours of training, when the report's folder is not there."""
    if output is not None and not output.absolute().parent.is_dir():
        raise WrongUse(
            f"{output} cannot be written: there is no folder {output.parent}", way_out="Take another -o FILE."
        )


def write(report: str, form: str, output: Path | None, stdout: TextIO | None = None) -> None:
    """Write a report where it was asked for. Text on a terminal is coloured, unless NO_COLOR is set."""
    if output is not None:
        report = printable(report) if form == "text" else report
        put(report.encode("utf-8", "backslashreplace"), output)
        remark(f"report written to {output}")
    elif form == "text":
        show(report, stdout or sys.stdout)
    else:
        click.echo(report, nl=False, file=stdout)


def put(content: bytes, output: Path) -> None:
    """Write a file that was asked for. WrongUse where that fails; half a file is not left behind."""
    is_new = not output.exists()
    try:
        output.write_bytes(content)
    except OSError as trouble:
        if is_new and output.is_file():
            output.unlink(missing_ok=True)
        raise WrongUse(f"{output} cannot be written: {trouble.strerror}", way_out="Take another -o FILE.") from trouble


def show(text: str, stream: TextIO) -> None:
    """Text for people: in colour on a terminal, plain elsewhere; never wrapped, so that lines can be searched."""
    text = printable(text)
    if not coloured(stream):
        stream.write(text)
        stream.flush()
        return
    from distdoctor.cli.colour import console

    console(stream).print(text, end="", soft_wrap=True, markup=False)


def notice(words: str) -> None:
    """One line of progress or notice on stderr."""
    if sys.stderr is not None:  # print(file=None) would write into the report
        print(f"distdoctor: {printable(words)}", file=sys.stderr, flush=True)


def remark(words: str) -> None:
    """A notice that nobody has to read: not with `-q`."""
    if not quiet():
        notice(words)


def not_examined(diagnosis: Diagnosis) -> None:
    """Say in one line which checks could not be made; with `-v` each with its reason."""
    if verbose():
        for one in diagnosis.not_examined:
            notice(f"not examined: {one.code} {one.slug}: {one.reason}")
        return
    codes = [one.code for one in diagnosis.not_examined if one.applies]
    if codes:
        more = f" and {len(codes) - 8} more" if len(codes) > 8 else ""
        remark(f"not examined: {', '.join(codes[:8])}{more} (-v or `distdoctor show` says why)")


def troubles(recording: Recording) -> None:
    """Say what distdoctor itself could not do: where the recorder fell silent, nothing that follows is health."""
    for trouble in recording.troubles[:3]:
        notice(trouble.what if trouble.rank < 0 or "rank" in trouble.what else f"rank {trouble.rank}: {trouble.what}")
    if len(recording.troubles) > 3:
        notice(f"and {len(recording.troubles) - 3} more such troubles (`distdoctor show` lists them)")


def without_accepted(diagnosis: Diagnosis, baseline: Path | None) -> Diagnosis:
    """The diagnosis with the findings that an earlier report holds moved to the suppressed ones: same code, file and function.

    WrongUse: the file is no JSON report.
    """
    from dataclasses import replace

    accepted = accepted_by(baseline)
    known = [finding for finding in diagnosis.findings if is_accepted(finding, accepted)]
    kept = tuple(finding for finding in diagnosis.findings if finding not in known)
    return replace(diagnosis, findings=kept, suppressed=(*diagnosis.suppressed, *known)) if known else diagnosis


def accepted_by(baseline: Path | None) -> frozenset[tuple[str, str, str]]:
    """What the findings of an earlier report are known by; nothing without one.

    WrongUse: the file is no JSON report.
    """
    from distdoctor.errors import UnreadableRecording
    from distdoctor.recording.files import LARGEST_JSON, read_json

    if baseline is None:
        return frozenset()
    try:
        found = read_json(baseline, LARGEST_JSON)["findings"]
        return frozenset(_identity(f["code"], f["place"]["path"], f["place"]["function"]) for f in found)
    except (UnreadableRecording, KeyError, TypeError):
        raise WrongUse(
            f"--baseline {baseline} is no report of distdoctor",
            way_out="Make one: `distdoctor report -o baseline.json`.",
        ) from None


def is_accepted(finding: Finding, accepted: Collection[tuple[str, str, str]]) -> bool:
    """Whether it is one of those that `accepted_by` gave."""
    return _identity(finding.code, finding.place.path, finding.place.function) in accepted


def _identity(code: str, path: str | None, function: str | None) -> tuple[str, str, str]:
    """What makes two findings of two runs the same: lines move, ranks and numbers change."""
    return code, (path or "").rpartition("/")[2], function or ""


def exit_code(diagnosis: Diagnosis, settings: Settings, *, hung: bool, job_failed: bool) -> int:
    """0 healthy, 1 findings at or above `--fail-on` or a failed job, 3 a hang."""
    from distdoctor.diagnosis.finding import Severity

    if hung:
        return 3
    if job_failed:
        return 1
    return int(settings.fail_on != "never" and bool(diagnosis.at_least(Severity[settings.fail_on.upper()])))


def exit_code_of_examination(diagnosis: Diagnosis, settings: Settings, *, hung: bool, job_failed: bool) -> int:
    """The same, for a recording that somebody gives us: 5 where not all of it could be looked at, so that nothing is no health,
    and 4 where there was nothing in it to look at."""
    code = exit_code(diagnosis, settings, hung=hung, job_failed=job_failed)
    if code or (diagnosis.is_whole and not diagnosis.left_open):
        return code
    return 4 if diagnosis.coverage is not None and diagnosis.coverage.is_empty else 5
