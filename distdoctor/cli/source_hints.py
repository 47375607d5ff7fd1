"""What lint knows about the files in which a job failed, said below its report: a hint, as nobody has seen it happen."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distdoctor.diagnosis.diagnosis import Diagnosis

MOST_HINTS = 3
MOST_CHARACTERS = 1 << 20  # of source: a second of a processor


def source_hints(diagnosis: Diagnosis, sources: Mapping[str, str], ignored: Collection[str] = ()) -> list[str]:
    """One line for each error or warning of lint in a file that a finding points into, unless a finding has said it already.

    `sources`: path -> text of the files that the ranks ran; where they are too long, those of the findings alone are read.
    """
    from distdoctor.diagnosis.finding import NOTE
    from distdoctor.lint.examine import chosen, examine

    failing = {path for finding in diagnosis.findings for path, _ in finding.lines if path in sources}
    if not failing:
        return []
    if sum(map(len, sources.values())) > MOST_CHARACTERS:
        sources = {path: sources[path] for path in failing if len(sources[path]) <= MOST_CHARACTERS}
    said = {finding.code for finding in diagnosis.findings}
    seen = examine(sources, chosen((), ignored)).findings
    more = [one for one in seen if one.severity != NOTE and one.place.path in failing and one.code not in said]
    return [
        f"lint sees more in {os.path.relpath(one.place.path)}:{one.place.line}: {one.code} {one.title} ({one.confidence})"
        for one in more[:MOST_HINTS]
    ]
