"""Each rule file: its page, its own sick and healthy script, its remedy and its edits."""

from __future__ import annotations

import sys

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.finding import CERTAIN
from distdoctor.diagnosis.source.edits import applied
from distdoctor.lint.examine import chosen, examine
from distdoctor.lint.rule import Rule
from distdoctor.lint.rules import all_rules

RULES = pytest.mark.parametrize("rule", all_rules(), ids=lambda rule: rule.code)


@RULES
def test_a_rule_names_its_own_sick_script_and_no_other_rule_speaks_louder(rule: Rule) -> None:
    seen = examine({"train.py": sys.modules[rule.module].SICK})

    assert {finding.code for finding in seen.findings} == {rule.code}
    assert not seen.failed
    assert all(finding.confidence is not CERTAIN for finding in seen.findings)


@RULES
def test_a_rule_and_all_others_are_silent_on_its_healthy_script(rule: Rule) -> None:
    assert examine({"train.py": sys.modules[rule.module].HEALTHY}).findings == ()


@RULES
def test_a_rule_has_a_page_that_starts_with_its_code_and_slug(rule: Rule) -> None:
    assert rule.handbook.startswith(f"{rule.code} {rule.slug}: ")
    words = ("What it means", "Why it hurts", "How we know", "What to do", "When it is fine", "Source")
    assert [word for word in words if word not in rule.handbook] == []


@RULES
def test_a_rule_is_called_as_the_check_of_the_same_code(rule: Rule) -> None:
    check = PLUGINS.checks.get(rule.code)

    assert check is None or check.slug == rule.slug


def test_remedies_that_are_prescribed_exist() -> None:
    known = PLUGINS.remedies
    found = [f for rule in all_rules() for f in examine({"train.py": sys.modules[rule.module].SICK}).findings]

    assert {cure.slug for finding in found for cure in finding.prescriptions} - {"", *known} == set()


@RULES
def test_the_edits_of_a_rule_end_its_findings(rule: Rule) -> None:
    text = sys.modules[rule.module].SICK
    edits = examine({"train.py": text}).edits.get("train.py", ())
    if not edits:
        pytest.skip("this rule has no safe edit")

    changed, count = applied(text, edits)

    assert count
    assert rule.code not in {finding.code for finding in examine({"train.py": changed}).findings}


def test_rules_are_chosen_by_code_slug_or_family_in_any_case() -> None:
    assert [rule.code for rule in chosen(["dd301", "missing-zero-grad"], [])] == ["DD212", "DD301"]
    assert {rule.code[:3] for rule in chosen(["DD3"], ["DD302"])} == {"DD3"}
    assert "DD302" not in {rule.code for rule in chosen(["DD3"], ["DD302"])}


LEAVES = """
import torch.distributed as dist
def convert(rank, config):
    if rank == 0:
        if config is None:
            dist.barrier()
            return
        try:
            write(config)
        except OSError:
            dist.barrier()
            raise
    {after}
"""


@pytest.mark.parametrize(("after", "codes"), [("dist.barrier()", set()), ("print('done')", {"DD112"})])
def test_a_rank_that_leaves_after_a_barrier_met_the_others_in_theirs_behind_the_condition(
    after: str, codes: set[str]
) -> None:
    seen = examine({"train.py": LEAVES.format(after=after)})

    assert {finding.code for finding in seen.findings} == codes


CHOSEN = """import torch.distributed as dist


def bring_home(grads, rank, world):
    return [{chosen} if i == rank else {other} for i in range(world)]
"""


@pytest.mark.parametrize(("other", "codes"), [("dist.reduce(grads[i], i)", set()), ("None", {"DD112"})])
def test_the_other_side_of_a_conditional_expression_counts(other: str, codes: set[str]) -> None:
    seen = examine({"train.py": CHOSEN.format(chosen="dist.reduce(grads[i], rank)", other=other)})

    assert {finding.code for finding in seen.findings} == codes


SIGNALLED = """import torch.distributed as dist


def step(optimizer, signal, rank, compute):
    def closure():
        if rank == 0:
            dist.broadcast(signal, src=0)
        return compute()

    if rank == 0:
        optimizer.step(closure)
    else:
        {heard}
        closure()
"""


@pytest.mark.parametrize(("heard", "codes"), [("dist.broadcast(signal, src=0)", set()), ("pass", {"DD112"})])
def test_a_closure_that_tells_the_others_is_answered_by_the_function_around_it(heard: str, codes: set[str]) -> None:
    seen = examine({"train.py": SIGNALLED.format(heard=heard)})

    assert {finding.code for finding in seen.findings} == codes


KEPT = """import torch


def train(heads, optimizers, {outer}):
    for batch in {outer}:
        losses = []
        for head, optimizer in {inner}:
            optimizer.zero_grad()
            loss = head(batch).sum()
            loss.backward()
            optimizer.step()
            losses.append(loss)
        print([loss.item() for loss in losses])
"""


@pytest.mark.parametrize(
    ("outer", "inner", "codes"),
    [("loader", "zip(heads, optimizers)", set()), ("epochs", "zip(loader, loader)", {"DD401"})],
)
def test_a_list_that_is_made_anew_in_each_step_does_not_grow(outer: str, inner: str, codes: set[str]) -> None:
    seen = examine({"train.py": KEPT.format(outer=outer, inner=inner)})

    assert {finding.code for finding in seen.findings} == codes
