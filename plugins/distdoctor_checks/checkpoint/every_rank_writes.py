"""
DD703 every-rank-writes: several ranks write one file at the same step.

What it means    The save has no rank guard, so all ranks open the same path and overwrite each other.
Why it hurts     The file may mix two writes or hold only one rank's state, and the disk does the work many times over.
How we know      Ranks of one machine called torch.save with the same absolute path, from the same line, at the same step:
                 certain. Or gave one file contents of their own (arrays, JSON, pictures; a file that gets its final name),
                 with no collective between: likely. Ranks that write the same are not reported there.
What to do       Save on rank 0 and let the others wait. Where the weights of the ranks differ at the save, because each holds
                 parts of the model that no other has, write one file per rank with the rank in its name, or gather first.
When it is fine  Distributed checkpoints: every rank writes its own file, and nothing is reported. Files that ranks add to in
                 turn, under a lock or with a barrier between.
Source           PyTorch, DDP tutorial: save on one process, load on all.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise

import numpy as np

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.checkpoint.checkpoints import FAILED, Checkpoints, Saved
from distdoctor.diagnosis.finding import CERTAIN, LIKELY, WARNING, Finding, Place, Prescription
from distdoctor.diagnosis.source.call_edits import calls_at
from distdoctor.diagnosis.source.edits import Edit
from distdoctor.diagnosis.source.rank_words import names_some_rank
from distdoctor.diagnosis.source.source_file import last_word, source_file
from distdoctor.diagnosis.source.statement_edits import on_rank_zero
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording, SourceLine
from distdoctor.recording.trace.events import FileWritten, Saving
from distdoctor.recording.trace.layout import POINT_TO_POINT
from distdoctor.recording.trace.state_file import SAVE, WEIGHTS

Together = list[Saved]


@check("DD703", "every-rank-writes", severity=WARNING)
def examine(checkpoints: Checkpoints, recording: Recording) -> Iterator[Finding]:
    rounds: dict[tuple[str, SourceLine, int], Together] = defaultdict(list)
    for save in checkpoints.saves:
        if save.event.by == "torch.save" and save.done_ns != FAILED and not save.event.path.startswith("/dev/"):
            rounds[save.event.path, save.event.site, save.event.step].append(save)
    by_line: dict[SourceLine, list[Together]] = defaultdict(list)
    for (_, site, _), every in rounds.items():
        for saves in _between_collectives(checkpoints, every):
            ranks = sorted({save.rank for save in saves})
            if len(ranks) > 1 and checkpoints.same_machine(ranks):
                by_line[site].append(saves)
    for site, together in by_line.items():
        own = _own_weights(recording, together)
        by_rank = _is_named_by_rank(recording.sources, site)
        edits = () if own or by_rank else _edits(checkpoints, recording, site, together)
        found = _finding(site, together, edits, own)
        yield replace(found, prescriptions=(_OWN_NUMBER,)) if by_rank else found

    yield from _other_files(checkpoints, recording)


def _between_collectives(checkpoints: Checkpoints, saves: Together) -> Iterator[Together]:
    """Those between which no collective of all these ranks stands: an optimizer that is built anew counts its steps from nought,
    and what one rank has written then another may write later. Where old calls are not on record any more they count as one."""
    ranks = {save.rank for save in saves}
    groups = checkpoints.logs[min(ranks)].group_list()
    shared = sorted({group.name for group in groups if ranks <= set(group.ranks)})
    found: dict[tuple[int, ...], Together] = defaultdict(list)
    for save in saves:
        before = checkpoints.calls_before(save.rank, save.event.at_ns)
        found[() if before is None else tuple(before.get(name, 0) for name in shared)].append(save)
    yield from found.values()


def _other_files(checkpoints: Checkpoints, recording: Recording) -> Iterator[Finding]:
    """What ranks wrote beside checkpoints, each its own contents into one file."""
    rounds: dict[tuple[str, SourceLine, int], dict[int, FileWritten]] = defaultdict(dict)
    for rank, event in checkpoints.events(FileWritten):
        rounds[event.path, event.site, event.step].setdefault(rank, event)
    told: set[SourceLine] = set()
    for (path, site, step), written in sorted(rounds.items(), key=lambda one: one[0][2]):
        contents = {event.content for event in written.values()} - {0}
        if len(contents) < 2 or site in told or not checkpoints.same_machine(sorted(written)):
            continue
        calls = [checkpoints.calls_before(rank, event.at_ns) for rank, event in written.items()]
        if None in calls or any(one != calls[0] for one in calls) or _takes_turns(recording.sources, site):
            continue
        if _told_each_other(recording, written):
            continue
        told.add(site)
        ranks = tuple(sorted(written))
        by = next(iter(written.values())).by
        yield Finding(
            title=f"{named(ranks)} all write {path}, each with contents of its own",
            ranks=ranks,
            confidence=LIKELY,
            place=site,
            places=(Place(site, ranks, f"{by} of {path}, step {step}"),),
            evidence={"path": path, "ranks": len(ranks), "contents": len(contents), "by": by},
            why=f"{len(contents)} different contents go into one path at step {step}: those of the last rank to write are kept",
            prescriptions=(Prescription("save-per-rank"),),
            at_ns=min(event.at_ns for event in written.values()),
        )


def _told_each_other(recording: Recording, written: Mapping[int, FileWritten]) -> bool:
    """Whether one of the ranks sent or received something between the first write and the last: a word whose turn it is."""
    first, last = (choose(event.at_ns for event in written.values()) for choose in (min, max))
    for log in (recording.ranks[rank] for rank in written):
        entered = log.calls["entered_ns"] + log.monotonic_to_wall_ns
        pairs = np.isin(log.calls["op"], [int(op) for op in POINT_TO_POINT])
        if (pairs & (entered >= first) & (entered <= last)).any():
            return True
    return False


def _takes_turns(sources: Mapping[str, str], site: SourceLine) -> bool:
    """Whether the line stands in a `with` that takes a lock."""
    file = source_file(sources, site.path)
    return any(
        node.lineno <= site.line <= (node.end_lineno or node.lineno)
        and any("lock" in ast.unparse(item.context_expr).lower() for item in node.items)
        for node in (file.nodes(ast.With) if file is not None else ())
        if isinstance(node, ast.With)
    )


_OWN_NUMBER = Prescription(
    "save-per-rank",
    change="the name of the file has a rank in it that is one number on all of them: make it dist.get_rank()",
)


def _is_named_by_rank(sources: Mapping[str, str], site: SourceLine) -> bool:
    """Whether what is called at a line is given a name in which a rank stands: then each was meant to write its own."""
    words = (last_word(one) for call in calls_at(sources, site) for arg in call.args[1:] for one in ast.walk(arg))
    return any(names_some_rank(word) for word in words if word)


def _own_weights(recording: Recording, together: list[Together]) -> list[str]:
    """The weights of which the ranks held different values when they saved, or only some ranks any."""
    found: set[str] = set()
    for saves in together:
        step, paths = saves[0].event.step, {path for save in saves for path in save.names}
        kept = {
            one.rank: one.digests(WEIGHTS)
            for one in recording.states
            if one.document.when == SAVE and one.document.step == step and not paths.isdisjoint(one.document.paths)
        }
        held = [kept[save.rank] for save in saves if kept.get(save.rank)]
        found |= {name for names in held for name in names if len({one.get(name) for one in held}) > 1}
    return sorted(found)


def _finding(site: SourceLine, together: list[Together], edits: tuple[Edit, ...], own: list[str]) -> Finding:
    first = min(together[0], key=lambda save: save.event.at_ns)
    ranks = tuple(sorted({save.rank for saves in together for save in saves}))
    overlapping = sum(_overlap(saves) for saves in together)
    at_once = f", {overlapping} of them simultaneously" if overlapping else ""
    return Finding(
        title=f"{named(ranks)} all write {first.event.path}",
        ranks=ranks,
        confidence=CERTAIN,
        place=site,
        places=(Place(site, ranks, f"saves {first.event.path}, step {first.event.step}"),),
        evidence={"path": first.event.path, "ranks": len(ranks), "saves": len(together), "overlapping": overlapping},
        why=f"{len(ranks)} ranks saved to one path{f', {len(together)} times' if len(together) > 1 else ''}{at_once}"
        + (f"; each with values of its own in {_some(own)}: those of the last one to write are kept" if own else ""),
        prescriptions=(
            Prescription("save-per-rank")
            if own
            else Prescription("save-on-rank-zero", effect=f"one write instead of {len(ranks)}", edits=edits),
        ),
        at_ns=first.event.at_ns,
    )


def _some(names: list[str]) -> str:
    first = names[0].rpartition(": ")[2]  # behind the name of the module that nobody holds
    return f"{first} and {len(names) - 1} more" if len(names) > 1 else first


def _edits(
    checkpoints: Checkpoints, recording: Recording, site: SourceLine, together: list[Together]
) -> tuple[Edit, ...]:
    """The save left to rank 0, where nobody reads what it wrote and no collective is called on its line."""
    names = {name for saves in together for save in saves for name in save.names}
    read = any(load.event.path in names for load in checkpoints.loads)
    logs = recording.ranks.values()
    meets = any(site in {log.site(number) for number in set(log.calls["site"].tolist())} for log in logs)
    zero_writes = all(0 in {save.rank for save in saves} for saves in together)
    return () if read or meets or not zero_writes else on_rank_zero(recording.sources, site, "save")


def _overlap(saves: Together) -> bool:
    begun = sorted(saves, key=lambda save: save.event.at_ns)
    return any(later.event.at_ns < earlier.done_ns for earlier, later in pairwise(begun))


def _job(*paths: str) -> Recording:
    from distdoctor.testing.gradients import trained_job

    job = trained_job(2)
    for rank, path in enumerate(paths):
        job.note(Saving(path, "torch.save", 10, 1), only=[rank], site="train.py:42 main")
    return job.initial().step().recording()


def sick() -> Recording:
    return _job("/job/last.pt", "/job/last.pt")


def healthy() -> Recording:
    """One file per rank."""
    return _job("/job/last-0.pt", "/job/last-1.pt")
