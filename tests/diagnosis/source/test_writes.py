"""Which lines write into a copy of the model, or into a buffer."""

from __future__ import annotations

import pytest

from distdoctor.diagnosis.source.writes import (
    accumulated_at,
    buffer_writes,
    is_used_forward,
    is_used_in_training,
    last_before,
    writes_into,
)
from distdoctor.recording.source_line import SourceLine

AVERAGE = """class Average:
    def __init__(self, model):
        self.net = copy.deepcopy(model)
        self.net.load_state_dict(model.state_dict())

    def update(self, model):
        for mine, theirs in zip(self.net.parameters(), model.parameters()):
            mine.lerp_(theirs, 0.01)

    def targets(self, x):
        scores = self.net(x)
        return scores.clamp_(0, 1)

    def back(self, model):
        for mine, theirs in zip(self.net.parameters(), model.parameters()):
            theirs.copy_(mine)


def train(model, average, rank):
    average.net.requires_grad_(False)
    for x in data:
        average.targets(x)
        if rank == 0:
            average.update(model)
    average.back(model)
"""
MADE = SourceLine("train.py", 3, "__init__")


def lines(source: str, label: str, made: SourceLine = MADE) -> list[int]:
    return [one.site.line for one in writes_into({"train.py": source}, label, made)]


def test_a_method_that_changes_the_copy_is_told_by_the_line_that_calls_it() -> None:
    assert lines(AVERAGE, "average.net") == [24]
    assert lines(AVERAGE, "average.net", SourceLine()) == [24]  # the class that keeps a `net` is the only one
    assert lines(AVERAGE, "Average") == [24]  # by where it was made


def test_nothing_is_told_where_two_classes_keep_one_of_that_name() -> None:
    other = "\n\nclass Other:\n    def __init__(self, model):\n        self.net = model\n"

    assert lines(AVERAGE + other, "average.net", SourceLine()) == []


PLAIN = """def refresh(teacher, student):
    state = student.state_dict()
    for name, value in teacher.state_dict().items():
        value.copy_(state[name])


def other(student):
    teacher, mine = load(), copy.deepcopy(student)
    refresh(teacher, student)
    refresh(mine, student)


def main(student):
    teacher = copy.deepcopy(student)
    smooth = AveragedModel(student)
    for x in data:
        refresh(teacher, student)
        smooth.update_parameters(student)
        loss(teacher(x), student(x)).backward()
        student.load_state_dict(best)
"""


def test_a_function_that_is_handed_the_copy_is_told_by_its_call_and_other_copies_are_not() -> None:
    assert lines(PLAIN, "teacher", SourceLine("train.py", 14, "main")) == [17]
    assert lines(PLAIN, "teacher", SourceLine()) == []  # two functions call one so
    used = SourceLine("train.py", 19, "main")
    assert [one.site.line for one in writes_into({"train.py": PLAIN}, "teacher", SourceLine(), used)] == [17]
    assert lines(PLAIN, "smooth", SourceLine()) == [18]


def test_a_copy_that_somebody_elses_class_keeps_up_is_told_by_the_method_that_says_so() -> None:
    assert lines(PLAIN, "smooth", SourceLine("train.py", 15, "main")) == [18]


ENGINE = """class Engine:
    def __init__(self, start):
        self.net = make()
        self.start = start

    def sleep(self):
        for weight in self.net.parameters():
            weight.zero_()

    def wake(self):
        self.net.load_state_dict(self.start)

    def push(self, state):
        self.net.load_state_dict(state)

    def play(self, x):
        return self.net(x)


def rollout(engine, policy, x):
    engine.push(policy.state_dict())
    engine.wake()
    played = engine.play(x)
    engine.sleep()
    return played
"""


def test_the_last_line_that_writes_before_the_copy_is_used_decides_what_it_holds() -> None:
    sources = {"train.py": ENGINE}
    writes = writes_into(sources, "engine.net", SourceLine())
    last = last_before(sources, writes, SourceLine("train.py", 17, "play"))

    assert [one.site.line for one in writes] == [21, 22, 24]
    assert last is not None
    assert last.site.line == 22


CODEBOOK = """class Codebook(nn.Module):
    def __init__(self, size):
        self.register_buffer("average", torch.ones(size))
        self.average.fill_(2)

    def forward(self, x):
        counts = x.sum(0)
        self.average.mul_(0.9).add_(counts, alpha=0.1)
        return self.average + x


class Other(nn.Module):
    def forward(self, x):
        self.average = x
"""


def test_the_lines_that_change_a_buffer_are_shown_with_what_they_write() -> None:
    found = buffer_writes({"train.py": CODEBOOK}, ["body.codebook.average"])

    assert [(site.line, text) for site, text in found] == [
        (7, "x.sum(0)"),
        (8, "self.average.mul_(0.9).add_(counts, alpha=0.1)"),
    ]


ROUTER = """class Router(nn.Module):
    def __init__(self, size):
        self.register_buffer("bias", torch.zeros(size))

    def update(self):
        load = self.counts.clone()
        delta = torch.sign(load.mean() - load)
        self.bias += delta - delta.mean()

    def reset(self, at):
        self.bias[at] = 0
"""


def test_a_buffer_that_is_added_to_in_place_is_followed_to_what_is_added() -> None:
    assert [site.line for site, _ in buffer_writes({"train.py": ROUTER}, ["layers.0.bias"])] == [6, 7, 8, 11]


def test_a_buffer_that_the_source_does_not_register_has_no_lines() -> None:
    assert buffer_writes({"train.py": CODEBOOK}, ["norm.running_mean"]) == []


STATISTIC = """class Scale(nn.Module):
    def __init__(self, size):
        self.register_buffer("mean", torch.zeros(size))

    def update(self, x):
        {}
        {}
"""


@pytest.mark.parametrize(
    ("statements", "line"),
    [
        (("delta = x.mean(0) - self.mean", "self.mean = self.mean + 0.1 * delta"), 7),
        (("old = self.mean.clone()", "self.mean.copy_(old + x.mean(0))"), 7),
        (("x = x.double()", "self.mean.lerp_(x.mean(0), 0.1)"), 7),
        (("x = x.double()", "self.mean += x.mean(0)"), 7),
        (("self.mean = torch.bernoulli(x)", "return x * self.mean"), 0),
        (("assert self.mean.shape == x.shape", "self.mean.copy_(x)"), 0),
        (("x = x.double()", "return x - self.mean"), 0),
    ],
)
def test_a_statistic_is_made_of_what_it_was_before(statements: tuple[str, str], line: int) -> None:
    assert accumulated_at({"train.py": STATISTIC.format(*statements)}, "Scale", "mean").line == line


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("y = x - self.mean", True),
        ("y = x - (x.mean(0) if self.training else self.mean)", False),
        ("y = x - (self.mean if not self.training else x.mean(0))", False),
        ("y = x - (self.mean if self.training else x.mean(0))", True),
        ("y = x", False),
        ("self.mean = y = 0.9 * self.mean + x.mean(0)", False),
    ],
)
def test_a_statistic_for_evaluation_is_not_used_in_training(statement: str, told: bool) -> None:
    text = STATISTIC.format("x = x.double()", "self.mean.lerp_(x.mean(0), 0.1)")
    source = {"train.py": f"{text}\n    def forward(self, x):\n        {statement}\n        return y\n"}

    assert is_used_in_training(source, "Scale", "mean") is told
    assert is_used_forward(source, "Scale", "mean") is ("- " in statement)
