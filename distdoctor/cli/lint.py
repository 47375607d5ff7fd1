"""`distdoctor lint FILES`: what the source already shows, without running it and without torch."""

from __future__ import annotations

import errno
import gc
import os
import sys
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import rich_click

from distdoctor.cli.options import fail_on, ignore, no_plugin, output, output_format
from distdoctor.errors import NothingToInspect, WrongUse

if TYPE_CHECKING:
    from distdoctor.lint.examine import Seen
    from distdoctor.lint.rule import Rule
    from distdoctor.plugins import Plugins

LARGEST_BYTES = 2 << 20  # beyond that a file is generated
STDIN = "<stdin>"


@dataclass
class TextsRead:
    """The texts that were read, by path as the user knows it; `bom` marks files that begin with one; why others were not."""

    texts: dict[str, str] = field(default_factory=dict)
    encodings: dict[str, str] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)


@click.command(cls=rich_click.RichCommand)
@click.argument("paths", nargs=-1, metavar="FILES...", required=True)
@click.option("--select", multiple=True, metavar="CODE", help="Only these rules: codes, slugs or code prefixes (DD3).")
@ignore
@click.option("--fix", is_flag=True, help="Write the safe fixes into the files.")
@click.option("--diff", is_flag=True, help="Print the safe fixes as a patch for `git apply`, and nothing else.")
@fail_on
@output_format
@output
@no_plugin
@click.pass_context
def lint(ctx: click.Context, /, paths: tuple[str, ...], **values: Any) -> None:
    """Find what the source of a training script already shows. FILES are files, folders, or - for standard input.

    Files given together are one program: helper functions are followed across them.
    `# distdoctor: ignore[DD301] -- reason` on a line accepts a finding.
    """
    from distdoctor.cli import deliver
    from distdoctor.cli.settings import load, load_plugins
    from distdoctor.lint.examine import chosen, examine

    fix, diff, select, to = (values.pop(name) for name in ("fix", "diff", "select", "output"))
    settings = load(values)
    plugins = load_plugins(settings)
    deliver.require_format(settings.output_format, plugins)
    rules = chosen(_codes(select), _codes(settings.ignore))
    if not rules:
        raise WrongUse(
            f"no rule is selected by --select {' '.join(select)}",
            way_out="Codes look like DD112; DD3 selects a family.",
        )
    sources = read(paths)
    gc.disable()  # syntax trees are alive until the end: looking for garbage among them costs a fifth of the time
    try:
        seen = examine(sources.texts, rules)
    finally:
        gc.enable()
    if diff:
        click.echo(_patch(sources, seen), nl=False)
    elif fix:
        _write_fixes(sources, seen)
        seen = examine(sources.texts, rules)
    if not diff:
        deliver.write(_report(seen, sources, rules, settings.output_format, plugins), settings.output_format, to)
    for trouble in (*sources.unread, *seen.unread, *(f"{one.code}: {one.reason}" for one in seen.failed)):
        deliver.notice(trouble)
    ctx.exit(_exit_code(seen, sources, settings.fail_on))


def _codes(values: Iterable[str]) -> list[str]:
    return [part.strip() for value in values for part in value.split(",") if part.strip()]


def _exit_code(seen: Seen, sources: TextsRead, least: str) -> int:
    """1 for findings at or above `--fail-on`, 5 when no file could be read."""
    from distdoctor.diagnosis.finding import Severity

    if least != "never" and any((f.severity or Severity.NOTE) >= Severity[least.upper()] for f in seen.findings):
        return 1
    return 5 if len(seen.unread) + len(sources.unread) and len(seen.unread) >= len(sources.texts) else 0


def read(paths: Iterable[str]) -> TextsRead:
    """The Python files that the paths name. WrongUse: one of them is not there. NothingToInspect: there is no Python file."""
    sources = TextsRead()
    files = 0
    for path in paths:
        if path == "-":
            _take(STDIN, sys.stdin.buffer.read(LARGEST_BYTES + 1), sources)
            files += 1
            continue
        if not Path(path).exists():
            raise WrongUse(f"there is no file {path}", way_out="Give files, folders, or - for standard input.")
        for file in _python_files(Path(path)):
            files += 1
            _read_one(file, sources)
    if not files:
        raise NothingToInspect(f"there is no Python file in {' '.join(paths)}", way_out="Give files that end in .py.")
    return sources


def _python_files(path: Path) -> Iterator[Path]:
    """A file itself; a folder's Python files in order, without hidden folders and virtual environments."""
    if not path.is_dir():
        yield path
        return
    for folder, inside, names in os.walk(path):
        here = Path(folder)
        inside[:] = sorted(
            one
            for one in inside
            if not one.startswith(".") and one not in ("node_modules", "__pycache__", "site-packages")
        )
        inside[:] = [one for one in inside if not (here / one / "pyvenv.cfg").exists()]
        yield from (here / name for name in sorted(names) if name.endswith(".py"))


def _read_one(file: Path, sources: TextsRead) -> None:
    name = os.path.normpath(file)
    try:
        if not file.is_file():
            raise OSError("it is no regular file")
        with file.open("rb") as opened:
            raw = opened.read(LARGEST_BYTES + 1)
    except OSError as trouble:
        sources.unread.append(f"{name} was not read: {trouble.strerror or trouble}")
    else:
        _take(name, raw, sources)


def _take(name: str, raw: bytes, sources: TextsRead) -> None:
    """Keep the text of a file, in the encoding that it declares."""
    try:
        if len(raw) > LARGEST_BYTES:
            raise ValueError(f"it has more than {LARGEST_BYTES >> 20} MiB")
        encoding = tokenize.detect_encoding(BytesIO(raw).readline)[0]
        sources.texts[name], sources.encodings[name] = raw.decode(encoding), encoding
    except (ValueError, SyntaxError, LookupError) as trouble:
        sources.unread.append(f"{name} was not read: {trouble}")


def _patch(sources: TextsRead, seen: Seen) -> str:
    from distdoctor.diagnosis.source.edits import applied, diff

    found = []
    for path, edits in sorted(seen.edits.items()):
        after, _ = applied(sources.texts[path], edits)
        found.append(diff(path, sources.texts[path], after))
    return "".join(found)


def _write_fixes(sources: TextsRead, seen: Seen) -> None:
    """The fixes in the files and in `sources`; what is done is told on stderr."""
    from distdoctor.cli import deliver
    from distdoctor.diagnosis.source.edits import applied

    if STDIN in sources.texts:
        raise WrongUse("standard input cannot be fixed in place", way_out="Use --diff, or name the file.")
    total, files = 0, 0
    for path, edits in seen.edits.items():
        after, count = applied(sources.texts[path], edits)
        if not count:
            continue
        try:
            _rewrite(path, after.encode(sources.encodings[path]))
        except (OSError, UnicodeEncodeError) as trouble:
            sources.unread.append(f"{path} was not written: {trouble}")
            continue
        sources.texts[path] = after
        total, files = total + count, files + 1
    deliver.notice(f"{total} {'edit' if total == 1 else 'edits'} in {files} {'file' if files == 1 else 'files'}")


def _rewrite(path: str, content: bytes) -> None:
    """Give a file of the user's new content, in its place: it keeps its owner, its mode and its links. OSError: there is no room
    for it; the file is as it was."""
    with open(path, "r+b") as file:
        before = os.fstat(file.fileno()).st_size
        try:
            os.posix_fallocate(file.fileno(), 0, len(content))
        except OSError as trouble:
            if trouble.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                file.truncate(before)
                raise
        file.write(content)
        file.truncate()


def _report(seen: Seen, sources: TextsRead, rules: Iterable[Rule], form: str, plugins: Plugins) -> str:
    from distdoctor.cli import deliver
    from distdoctor.diagnosis.diagnosis import Diagnosis
    from distdoctor.lint import text
    from distdoctor.recording.recording import Job

    if form == "text":
        unread = len(sources.unread) + len(seen.unread)
        return text.render(seen, len(sources.texts) - len(seen.unread), unread, plugins.remedies)
    diagnosis = Diagnosis(
        job=Job(),
        findings=seen.findings,
        suppressed=seen.suppressed,
        not_examined=seen.failed,
        examined=tuple(one.code for one in rules),
        remedies=plugins.remedies,
    )
    return deliver.rendered(diagnosis, form, plugins)
