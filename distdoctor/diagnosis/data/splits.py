"""Where the source cuts a dataset into parts, or says which a sampler deals out; and the key of findings about one split."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping

from distdoctor.diagnosis.data.samples import DataSet
from distdoctor.diagnosis.finding import Place
from distdoctor.diagnosis.hang.wording import at
from distdoctor.diagnosis.source.given_values import Line
from distdoctor.diagnosis.source.picked_samples import Cut
from distdoctor.diagnosis.source.source_file import last_word, source_file
from distdoctor.recording.source_line import SourceLine

MOST_ROWS = 6  # about how a dataset is cut
WORDS = "the dataset is split, on each rank in another way"


def split_key(data: DataSet) -> str:
    """The key of what ranks make of one dataset that each of them splits for itself."""
    return f"split of {data.name} {data.digest}"


def split_line(sources: Mapping[str, str]) -> SourceLine:
    """The one call that makes a Subset in the files that ran; no line where there are several, or none."""
    found = []
    for path in sources:
        file = source_file(sources, path)
        calls = file.nodes(ast.Call) if file is not None else ()
        for call in calls:
            if last_word(call.func) in ("random_split", "Subset"):
                found.append(SourceLine(path, call.lineno))
    return found[0] if len(found) == 1 else SourceLine()


def cut_places(cut: Cut, ranks: tuple[int, ...]) -> tuple[Place, ...]:
    """The line to change first, then where the dataset is cut, and what its parts are made of."""
    rows = [Place(line, ranks, f"the parts are made of `{text}`") for line, text in cut.way]
    rows = [Place(cut.site, ranks, WORDS), *rows] if cut.site else rows
    return tuple(sorted(rows, key=lambda row: row.site != cut.decides))[:MOST_ROWS]


def same_parts(cut: Cut) -> str:
    """What makes the parts the same on all ranks; "" where the source does not show what they are made of."""
    if not cut.way:
        return ""
    if cut.of_shares:
        return f"put together what the ranks have picked (all_gather_object) before {at(cut.decides)} uses it"
    return f"pick the samples at {at(cut.decides)} by a generator that has the same seed on every rank"


def given_places(given: Iterable[Line], ranks: tuple[int, ...]) -> tuple[Place, ...]:
    """The rows of what a sampler is given, and of what that is made of, the nearest first."""
    return tuple(
        Place(line, ranks, f"{'made of' if number else 'the sampler is given'} `{text}`")
        for number, (line, text) in enumerate(given)
    )
