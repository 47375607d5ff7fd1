"""Optimizers that hold the same parameters in another order on another rank."""

from __future__ import annotations

from sick import PLUGINS

from distdoctor.diagnosis.derived import derived
from distdoctor.diagnosis.finding import Finding
from distdoctor.diagnosis.replicas.gradients import Gradients
from distdoctor.diagnosis.replicas.wording import in_other_orders
from distdoctor.diagnosis.source.set_order import lists_in_set_order
from distdoctor.testing.gradients import TrainedJob, trained_job

SOURCE = """
def groups(model):
    decay, rest = set(), set()
    named = dict(model.named_parameters())
    first = sorted(name for name in decay)
    return [{"params": [named[name] for name in decay]}, {"params": [named[name] for name in rest]}, first]


def train(optimizer):
    optimizer.step()
"""
PARAMETERS = {"body.weight": "[8, 8]", "head.weight": "[8, 8]"}
OTHER = {1: tuple(reversed(PARAMETERS))}


def told(job: TrainedJob) -> list[Finding]:
    recording = job.recording(sources={"/job/train.py": SOURCE})
    return [one for code in ("DD201", "DD202", "DD203", "DD205") for one in PLUGINS.checks[code].look(recording)]


def test_gradients_that_are_reduced_in_another_order_differ_although_one_digest_of_them_all_agrees() -> None:
    (finding,) = told(trained_job(2, parameters=PARAMETERS, orders=OTHER, wrapped=False).initial().step().step())

    assert (finding.code, finding.ranks) == ("DD202", (0, 1))


def test_where_the_orders_part_is_told_in_words() -> None:
    job = trained_job(2, parameters=PARAMETERS, orders=OTHER, wrapped=False).initial().step()
    gradients = derived(Gradients, job.recording())
    orders = gradients.other_orders(gradients.peers[0])

    assert orders == {"body.weight": (0,), "head.weight": (1,)}
    assert "`body.weight` on rank 0 and `head.weight` on rank 1" in in_other_orders(orders)


def test_replicas_whose_wrapper_reduces_by_name_are_equal_whatever_the_order() -> None:
    assert told(trained_job(2, parameters=PARAMETERS, orders=OTHER).initial().step().step()) == []


def test_where_a_wrapper_reduces_the_order_is_no_cause_of_what_differs() -> None:
    job = trained_job(2, parameters=PARAMETERS, orders=OTHER).initial().step()
    (finding,) = told(job.step(grads={1: 1}, params={1: 1}))

    assert (finding.code, "different orders" in finding.why) == ("DD202", False)


def test_what_is_sorted_or_no_set_is_in_order() -> None:
    lines = lists_in_set_order({"t.py": SOURCE}, "t.py")

    assert [(line.line, line.function) for line in lines] == [(6, "groups")]
    assert lists_in_set_order({"t.py": SOURCE.replace("set()", "[]")}, "t.py") == []


def test_a_list_of_a_set_has_its_order() -> None:
    text = "names = {n for n, p in table}\nplain = {}\na, b = list(plain), sorted(list(names))\nc = tuple(names)\n"

    assert [line.line for line in lists_in_set_order({"t.py": text}, "t.py")] == [4]
