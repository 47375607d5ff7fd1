"""Where the source cuts a dataset into parts, or says which a sampler deals out; and the key of findings about one split."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping

from distdoctor.diagnosis.data.samples import DataSet
from distdoctor.diagnosis.finding import Place
from distdoctor.diagnosis.source.given_values import Line
from distdoctor.diagnosis.source.source_file import last_word, source_file
from distdoctor.recording.source_line import SourceLine

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


def given_places(given: Iterable[Line], ranks: tuple[int, ...]) -> tuple[Place, ...]:
    """The rows of what a sampler is given, and of what that is made of, the nearest first."""
    return tuple(
        Place(line, ranks, f"{'made of' if number else 'the sampler is given'} `{text}`")
        for number, (line, text) in enumerate(given)
    )
