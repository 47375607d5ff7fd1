"""Collectives in the order of a set of texts are told where the ranks hash texts differently, and only there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import LIKELY, Finding, Stalls
from distdoctor.diagnosis.hang.hash_order import HASHES
from distdoctor.diagnosis.source.set_order import set_loop_around
from distdoctor.recording.recording import Recording, SourceLine
from distdoctor.recording.trace.events import NewGroupBegun
from distdoctor.testing import recording

CHECKS = [check for check in PLUGINS.checks.values() if check.family == "hang"]
TRAIN = """\
import torch.distributed as dist
NAMES = {names}


class Averager:
    def __init__(self, names):
        self.names = names

    def compute(self, sums):
        for name in {loop}:
            value = sums[name] / 2
            dist.all_reduce({given})


Averager(NAMES).compute(dict.fromkeys(NAMES, 1.0))
"""
SET = '{"loss", "accuracy", "f1"}'


def job(
    names: str = SET, loop: str = "self.names", given: str = "value", hashes: tuple[object, ...] = (1, 2)
) -> Recording:
    script = recording(ranks=2).source("train.py", TRAIN.format(names=names, loop=loop, given=given))
    for _ in range(3):
        script.collective("all_reduce", [1], site="train.py:12 compute")
    done = script.collective("barrier", site="train.py:15 <module>").finished()
    ranks = {
        rank: replace(log, environment={} if hashes[rank] is None else {HASHES: hashes[rank]})
        for rank, log in done.ranks.items()
    }
    return replace(done, ranks=ranks)


def findings(job: Recording) -> list[Finding]:
    return list(examine(job, CHECKS).findings)


def test_a_loop_over_a_set_of_names() -> None:
    [finding] = findings(job())
    assert (finding.code, finding.ranks, finding.confidence) == ("DD107", (0, 1), LIKELY)
    assert {place.site.line for place in finding.places} == {2, 10, 12}
    [edit] = finding.prescriptions[0].edits
    assert edit.text == "sorted(self.names)"


@pytest.mark.parametrize(
    ("names", "loop"),
    [
        ('set("a b c".split())', "self.names"),
        (SET, "list(self.names)"),
        (SET, "self.names | {'wer'}"),
        ("{name for name, _ in model.named_parameters()}", "self.names"),
        ('frozenset(["a", "b", "c"])', "enumerate(self.names)"),
    ],
)
def test_sets_of_many_makings(names: str, loop: str) -> None:
    assert [finding.code for finding in findings(job(names, loop))] == ["DD107"]


@pytest.mark.parametrize(
    ("names", "loop"),
    [
        (SET, "sorted(self.names)"),
        ('["loss", "f1"]', "self.names"),
        ('{"loss": 1, "f1": 2}', "self.names"),
        ("{1, 2, 3}", "self.names"),
        (f"sorted({SET})", "self.names"),
        (f"dict.fromkeys({SET})", "self.names"),
        ("set(read_names())", "self.names"),
        ('{"loss"}', "self.names"),
    ],
)
def test_what_has_an_order_is_fine(names: str, loop: str) -> None:
    assert not findings(job(names, loop))


def test_a_call_that_does_not_ask_which_element_it_is_at_is_fine() -> None:
    assert not findings(job(given="total"))


@pytest.mark.parametrize("hashes", [(1, 1), (None, None), (1, None)])
def test_one_hash_seed_for_all_or_none_on_record_is_fine(hashes: tuple[object, ...]) -> None:
    assert not findings(job(hashes=hashes))


@pytest.mark.parametrize("names", [SET, "set(tables) & set(allowed)"])
@pytest.mark.parametrize("hashes", [(1, 2), (7, 7)])
def test_one_line_that_meets_itself_at_another_element(names: str, hashes: tuple[int, int]) -> None:
    """The sizes differ, and by the calls alone one rank brought another shape: the set is why, where the hashes differ."""
    script = recording(ranks=2).source("train.py", TRAIN.format(names=names, loop="self.names", given="value"))
    script.collective("all_reduce", [64, 8], site="train.py:12 compute").step()
    script.collective("all_reduce", [64, 8], site="train.py:12 compute").instead(1, shape="[20, 8]")
    stuck = script.live()
    ranks = {rank: replace(log, environment={HASHES: hashes[rank]}) for rank, log in stuck.ranks.items()}
    [finding] = findings(replace(stuck, ranks=ranks))

    if hashes[0] == hashes[1]:
        assert finding.code == "DD103"
    else:
        assert (finding.code, finding.ranks, finding.confidence) == ("DD107", (0, 1), LIKELY)
        assert {2, 10} <= {place.site.line for place in finding.places}
        assert finding.prescriptions[0].edits[0].text == "sorted(self.names)"


TABLES = """\
import torch.distributed as dist


def evaluate(loader):
    tables = {{}}
    for topics in loader:
        for topic in topics:
            {filled}
    for topic, table in {gone_through}:
        dist.all_reduce(table)
"""


def of_tables(filled: str, gone_through: str = "tables.items()") -> list[tuple[str, int]]:
    """Rank 1 comes with another size."""
    text = TABLES.format(filled=filled, gone_through=gone_through)
    script = recording(ranks=2).source("train.py", text).collective("all_reduce", [8], site="train.py:2 main")
    for rank, shapes in enumerate(([7, 7], [4, 4])):
        script.collective("all_reduce", shapes, site="train.py:10 evaluate", only=rank)
    return [(one.code, one.place.line) for one in examine(script.live(), CHECKS).findings]


@pytest.mark.parametrize(
    "filled", ["tables.setdefault(topic, torch.zeros(SIZES[topic], 2))", "tables[topic] = torch.zeros(len(topic))"]
)
def test_a_dict_whose_sizes_are_those_of_keys_met_in_the_order_of_the_data_is_told(filled: str) -> None:
    assert of_tables(filled) == [("DD107", 9)]
    assert of_tables(filled, "enumerate(tables.values())") == [("DD107", 9)]


@pytest.mark.parametrize("filled", ["tables[topic] = features(topic)", "tables[topic] = torch.zeros(width)"])
def test_sizes_that_may_vary_with_the_data_show_no_order(filled: str) -> None:
    assert [code for code, _ in of_tables(filled)] == ["DD103"]


@pytest.mark.parametrize(
    ("filled", "gone_through"),
    [
        ("tables['all'] = torch.zeros(topic)", "tables.items()"),
        ("tables[topic] = torch.zeros(topic)", "sorted(tables.items())"),
        ("others[topic] = torch.zeros(topic)", "tables.items()"),
    ],
)
def test_a_dict_with_an_order_of_its_own_is_not_blamed(filled: str, gone_through: str) -> None:
    assert [code for code, _ in of_tables(filled, gone_through)] == ["DD103"]


LAYOUT = """\
def used_by(plan):
    return {{name for step in plan for name in step}}


def open_groups(plan):
    groups = {{}}
    for name in {loop}:
        groups[name] = dist.new_group(PLACES[name])
    return groups
"""
IN_TURN = {0: [(0, 1)], 1: [(0, 2), (0, 1, 2)], 2: [(0, 1), (0, 2)]}  # the last of each has not come back
AT_ONCE = {0: [(0, 1, 2)], 1: [(0, 1, 2)], 2: [(1, 2)]}  # the first number is another group on each side
IN_LINE = {0: [(0, 1)], 1: [(0, 1)], 2: [(0, 2)]}  # ranks 0 and 1 have met in theirs


def grouping(
    made: dict[int, list[tuple[int, ...]]], *, loop: str = "used_by(plan)", hashes: tuple[int, ...] = (1, 2, 3)
) -> Recording:
    """Three ranks that make these groups, each in its own order."""
    script = recording(ranks=3).source("layout.py", LAYOUT.format(loop=loop))
    for rank, own in made.items():
        for members in own:
            done = members != own[-1] or (rank not in members)
            script.note(NewGroupBegun(members, done_ns=int(done)), [rank], site="layout.py:8 open_groups")
    standing = script.live(silent_for=9)
    ranks = {rank: replace(log, environment={HASHES: hashes[rank]}) for rank, log in standing.ranks.items()}
    return replace(standing, ranks=ranks)


def of_groups(recorded: Recording) -> Finding:
    (finding,) = [one for one in findings(recorded) if one.code == "DD119"]
    return finding


@pytest.mark.parametrize(
    ("made", "stalls"), [(IN_TURN, Stalls.FOREVER), (AT_ONCE, Stalls.FOREVER), (IN_LINE, Stalls.MAYBE)]
)
def test_groups_that_are_made_in_the_order_of_a_set(made: dict[int, list[tuple[int, ...]]], stalls: Stalls) -> None:
    """Ranks that wait for each other in a ring of groups never leave them; where two have met, the third may still come."""
    finding = of_groups(grouping(made))

    assert (finding.ranks, finding.confidence, finding.stalls) == ((0, 1, 2), LIKELY, stalls)
    assert finding.title.startswith("make their groups in the order of the set `used_by(plan)`")
    assert [place.site.line for place in finding.places[:2]] == [7, 2]
    assert finding.prescriptions[0].edits[0].text == "sorted(used_by(plan))"


@pytest.mark.parametrize("how", [{"loop": "sorted(used_by(plan))"}, {"hashes": (7, 7, 7)}])
def test_groups_in_an_order_that_all_share_part_for_another_reason(how: Any) -> None:
    assert "the set" not in of_groups(grouping(IN_TURN, **how)).title


def test_a_set_that_a_function_returns_among_other_things_is_found() -> None:
    source = """\
def load(path):
    cfg = json.loads(path.read_text())
    active = set(cfg["tasks"]) - set(cfg["off"])
    return cfg, active


def groups_of(cfg, active):
    for name in active:
        dist.new_group(cfg["tasks"][name])


def main(path):
    cfg, active = load(path)
    groups_of(cfg, active)
"""
    loop = set_loop_around(
        {"/job/t.py": source}, SourceLine("/job/t.py", 9, "groups_of"), "new_group", known_to_differ=True
    )

    assert loop is not None
    assert (loop.loop.line, loop.made.line) == (8, 3)
