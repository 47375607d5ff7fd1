"""What a loader's dataset is cut by, and what picks the samples of a part in another way on each rank. Pure `ast`.

mine = pool[rank::world_size]                 # each rank picks from a share of its own,
labelled = labelled + best_of(mine)           # and what it has picked is never exchanged
loader = DataLoader(Subset(pool, labelled))
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from distdoctor.diagnosis.source.call_edits import calls_at
from distdoctor.diagnosis.source.decision import LEAST
from distdoctor.diagnosis.source.given_values import Line, all_made_of
from distdoctor.diagnosis.source.rank_local import is_share, origin
from distdoctor.diagnosis.source.source_file import argument, last_word
from distdoctor.diagnosis.source.user_program import UserProgram, program_of
from distdoctor.recording.source_line import SourceLine

_CUTTING = ("random_split", "Subset")


@dataclass(frozen=True)
class Cut:
    """`site`: the call that cuts the dataset. `way`: what its parts are made of, back to what differs between ranks, that last.

    `of_shares`: that takes the share of the rank, as it may, and nothing puts together what ranks make of their shares.
    """

    site: SourceLine = field(default_factory=SourceLine)
    way: tuple[Line, ...] = ()
    of_shares: bool = False

    @property
    def decides(self) -> SourceLine:
        """The line to change."""
        return self.way[0 if self.of_shares else -1][0] if self.way else self.site


def cut_of_data(sources: Mapping[str, str], loader: SourceLine) -> Cut:
    """The one call that cuts the dataset of the loader made at a line, else the one call of the program that cuts any."""
    program = program_of(sources)
    datasets = [one for call in calls_at(sources, loader) if (one := argument(call, 0, "dataset")) is not None]
    every = [call for file in program.files for call in file.nodes(ast.Call) if last_word(call.func) in _CUTTING]
    calls = [call for one in datasets for call in _cutting(program, one)] or every
    if len(dict.fromkeys(calls)) != 1:
        return Cut()
    site = program.scope_of(calls[0]).line(calls[0])
    given = (*calls[0].args[1:], *(word.value for word in calls[0].keywords if word.arg != "dataset"))
    found = max((origin(program, one, is_test=False, sizes_matter=False, picks_matter=True) for one in given),
                key=lambda one: one.weight, default=None)  # fmt: skip
    if found is None or found.weight < LEAST:
        return Cut(site)
    hops = (hop for number, hop in enumerate(found.way, 1) if not hop.text.isidentifier() or number == len(found.way))
    lines = {SourceLine(hop.path, hop.line, hop.function): hop.text for hop in hops}
    way = tuple((line, text) for line, text in lines.items() if (line.path, line.line) != (site.path, site.line))
    return Cut(site, way, is_share(found.last))


def _cutting(program: UserProgram, dataset: ast.expr) -> Iterator[ast.Call]:
    for made in all_made_of(program, dataset):
        yield from (node for node in ast.walk(made) if isinstance(node, ast.Call) and last_word(node.func) in _CUTTING)
