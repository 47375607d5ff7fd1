"""The value that let ranks part in one line: what makes an argument of a call differ between them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping

from distdoctor.diagnosis.source.decision import LEAST, Decision
from distdoctor.diagnosis.source.rank_local import origin, step_of
from distdoctor.diagnosis.source.user_program import program_of
from distdoctor.diagnosis.source.ways import way_to
from distdoctor.recording.recording import SourceLine

ROOT, DTYPE, SHAPE, REDUCTION = "root", "dtype", "shape", "reduction"  # in what calls differ, as `alignment` says it
TAG, MEMBERS = "tag", "members"  # the same of messages, and of groups under construction
GROUP = "group"  # of calls on several groups
_NAMED = {
    ROOT: ("src", "dst", "root", "group_src", "group_dst"),
    REDUCTION: ("op",),
    TAG: ("tag",),
    MEMBERS: ("ranks", "mesh_shape"),
    GROUP: ("group", "process_group", "pg"),
}


def deciding_value(sources: Mapping[str, str], site: SourceLine, differs: str) -> Decision | None:
    """What makes the arguments of the call in a line differ between ranks in this respect (ROOT, DTYPE, SHAPE, ...); None when
    nothing in the source tells."""
    return next((decision for _, decision in _values(sources, site, differs)), None)


def most_telling_value(sources: Mapping[str, str], sites: Iterable[SourceLine], differs: str) -> Decision | None:
    """The same of several lines, of which it is the one that looks most as if each rank answered for itself."""
    found = ((weight, one) for site in dict.fromkeys(sites) for weight, one in _values(sources, site, differs))
    return max(found, key=lambda one: one[0], default=(0.0, None))[1]


def _values(sources: Mapping[str, str], site: SourceLine, differs: str) -> Iterator[tuple[float, Decision]]:
    """What makes an argument of the call in a line differ, and how telling that is: one, or none."""
    program = program_of(sources)
    way = way_to(program, site)
    if way is None:
        return
    (node,) = next(iter(way.nodes.values()))[:1]
    parts = _arguments(node, differs) if isinstance(node, ast.Call) else [node]
    by_size, by_type = differs in (SHAPE, ROOT), differs == DTYPE
    origins = (origin(program, one, is_test=False, sizes_matter=by_size, types_matter=by_type) for one in parts)
    found = max(origins, key=lambda one: one.weight, default=None)
    if found is not None and found.weight >= LEAST:
        yield found.weight, Decision.of(step_of(program, node), found.way, found.also)


def _arguments(call: ast.Call, differs: str) -> list[ast.expr]:
    """The arguments that say so; the positional ones too where none is named."""
    calls = [node for node in ast.walk(call) if isinstance(node, ast.Call)]  # the one that is meant may stand in it
    named = [k.value for one in calls for k in one.keywords if k.arg in _NAMED.get(differs, ())]
    return named or [*call.args, *(k.value for k in call.keywords)]
