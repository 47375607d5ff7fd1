"""Sources in, findings out: what `distdoctor lint`, flake8 and the tests call."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePath

from distdoctor.diagnosis.diagnosis import NotExamined
from distdoctor.diagnosis.finding import NOTE, Finding
from distdoctor.diagnosis.source.edits import Edit, lines_of
from distdoctor.diagnosis.source.patch import patch_of
from distdoctor.diagnosis.source.source_file import SourceFile, Unparsable, parse
from distdoctor.lint.program import ParsedFiles
from distdoctor.lint.rule import Rule, Sighting, is_among_tests
from distdoctor.lint.rules import all_rules
from distdoctor.lint.suppressions import accepted


@dataclass(frozen=True)
class Seen:
    """What the rules saw. `unread`: one sentence for each file that is no Python. `edits`: the safe ones, by path."""

    findings: tuple[Finding, ...]
    suppressed: tuple[Finding, ...]
    unread: tuple[str, ...]
    edits: dict[str, tuple[Edit, ...]]
    failed: tuple[NotExamined, ...] = ()


def examine(sources: Mapping[str, str], rules: Iterable[Rule] | None = None) -> Seen:
    """Examine sources, path -> text, as one program. A file without a word of torch is not even parsed, unless names
    or values of others come through it."""
    program, unread = _program(sources)
    found: list[tuple[Finding, Sighting]] = []
    failed = []
    for rule in all_rules() if rules is None else rules:
        try:
            found += [(finding, seen) for seen in rule.see(program) if not _on_purpose(finding := rule.finding(seen))]
        except Exception as error:  # one rule's mistake costs the others nothing
            failed.append(NotExamined(rule.code, rule.slug, f"the rule failed: {type(error).__name__}: {error}"))
    found.sort(key=lambda one: (-(one[0].severity or 0), one[0].place.path, one[0].place.line, one[0].code))
    kept, suppressed = _sorted_out(found)
    edits: dict[str, list[Edit]] = {}
    for _, seen in kept:
        for edit in seen.edits:
            edits.setdefault(edit.path, []).append(edit)
    return Seen(
        tuple(_with_patches(finding, sources) for finding, _ in kept),
        tuple(suppressed),
        tuple(unread),
        {path: tuple(ones) for path, ones in edits.items()},
        tuple(failed),
    )


def _with_patches(finding: Finding, sources: Mapping[str, str]) -> Finding:
    """The finding with a patch for each of its edits by itself; `--diff` makes one of all together."""
    made = (replace(one, edits=(), patch=patch_of(one.edits, sources)) for one in finding.prescriptions)
    return replace(finding, prescriptions=tuple(made))


def _on_purpose(finding: Finding) -> bool:
    """A note on a test: tests wrap, read and wait for reasons of their own."""
    path = finding.place.path
    return finding.severity == NOTE and (PurePath(path).name.startswith("test_") or is_among_tests(path))


def _program(sources: Mapping[str, str]) -> tuple[ParsedFiles, list[str]]:
    files: list[SourceFile] = []
    unread = []
    speaking = {path for path, text in sources.items() if any(word in text for word in ("torch", "accelerat"))}
    folders = {PurePath(path).parent for path in speaking}
    for path, text in sources.items():
        matters = path in speaking
        if not matters and not _hands_on(path, text, folders):
            continue
        try:
            files.append(parse(path, text))
        except Unparsable as trouble:
            unread += [str(trouble)] if matters else []
    return ParsedFiles(files), unread


def _hands_on(path: str, text: str, folders: Collection[PurePath]) -> bool:
    """Whether it is a package's own file through which others import what its modules hold, or has classes in a folder where
    torch is spoken of: values of others may go through these."""
    if PurePath(path).name == "__init__.py":
        return "import " in text
    return "class " in text and PurePath(path).parent in folders


def _sorted_out(found: list[tuple[Finding, Sighting]]) -> tuple[list[tuple[Finding, Sighting]], list[Finding]]:
    """What stands, and what a comment in the source accepts. One code on one line is one finding."""
    kept, suppressed, seen = [], [], set()
    for finding, sighting in found:
        key = (finding.code, finding.place)
        if key in seen:
            continue
        seen.add(key)
        file = sighting.scope.file
        end = getattr(sighting.node, "end_lineno", finding.place.line) or finding.place.line
        if accepted(finding, lines_of(file.text), end):
            suppressed.append(finding)
        else:
            kept.append((finding, sighting))
    return kept, suppressed


def chosen(select: Collection[str], ignore: Collection[str]) -> tuple[Rule, ...]:
    """The rules that are asked for: codes, slugs or beginnings of codes (`DD3`), in any case."""
    wanted, unwanted = [one.lower() for one in select], [one.lower() for one in ignore]
    return tuple(one for one in all_rules() if (not wanted or _is_named(one, wanted)) and not _is_named(one, unwanted))


def _is_named(rule: Rule, words: Collection[str]) -> bool:
    return any(rule.code.lower().startswith(word) or rule.slug == word for word in words)
