"""The condition that let ranks part, behind helpers that are called from several places, decorators that remember, logs that
format lazily, and questions whose answer is the same everywhere."""

from __future__ import annotations

from textwrap import dedent

import pytest

from distdoctor.diagnosis.source.deciding import deciding_condition
from distdoctor.diagnosis.source.deciding_value import DTYPE, SHAPE, deciding_value
from distdoctor.diagnosis.source.decision import Decision
from distdoctor.diagnosis.source.given_values import given_at
from distdoctor.recording.recording import SourceLine

MARKER = """\
    def evaluate(model):
        dist.all_reduce(model.loss)
    def main(model, steps):
        for step in range(steps):
            model(step).backward()
            if step % 5 == 0 and finished(evaluate(model)):
                break
        evaluate(model)
    def finished(loss):
        return os.path.exists(STOP)
    main(model, 100)
    """
REMEMBERED = """\
    @functools.lru_cache(maxsize=32)
    def weights(histogram):
        counts = torch.tensor(histogram)
        dist.all_reduce(counts)
        return counts
    def main(model, stream):
        for labels in stream:
            loss = model(weights(histogram(labels)))
            loss.backward()
    """
LAZY = """\
    class Summary:
        def __init__(self, tensor):
            self.tensor = tensor
        def __str__(self):
            return str(self.tensor.full_tensor())
    def main(model, log):
        for step in range(100):
            dist.all_reduce(model.loss)
            for parameter in model.parameters():
                log.info("%s", Summary(parameter))
    """
SHARED_QUESTION = """\
    class Collector:
        def __init__(self, every):
            self.every = every
        def gather(self, values):
            if not values:
                return
            dist.all_gather_object([None] * 2, values)
        def after(self, step):
            if step % self.every == 0:
                self.gather(self.drain())
    def main(model, collector):
        for step in range(100):
            dist.all_reduce(model.grad)
            collector.after(step)
    main(model, Collector(parser.parse_args().every))
    """
INFERRED = """\
    def merge(rows):
        lengths = torch.tensor(rows)
        total = lengths.sum()
        dist.all_reduce(total)
    """
OF_A_SET = """\
    class Averager:
        def __init__(self, model):
            self.names = pick(model)
        def average(self):
            for name in self.names:
                grad = self.parameters[name].grad
                dist.all_reduce(grad)
    def pick(model):
        names = {name for name, _ in model.named_parameters()}
        names -= {name for name in names if name.startswith("frozen")}
        return names
    """
TIMEOUT = """\
    class Groups:
        def __init__(self, seconds):
            self.metrics = dist.new_group(timeout=timedelta(seconds=seconds))
    def main():
        groups = Groups(seconds=4)
    """


OWN_NAMES = """\
    class Trainer:
        def flush(self):
            names = sorted(self.pending)
            for name in names:
                dist.all_gather(parts, self.pending[name])
        def fit(self, steps=80, every=2):
            for step in range(steps):
                self.train()
                if step % every == 0:
                    self.flush()
        def train(self):
            loss.backward()
    Trainer().fit()
    """


def at(line: int, function: str = "main") -> SourceLine:
    return SourceLine("train.py", line, function)


def decided(
    source: str, one: SourceLine, other: SourceLine, **more: tuple[list[SourceLine], list[SourceLine]]
) -> Decision:
    found = deciding_condition({"train.py": dedent(source)}, one, other, **more)  # type: ignore[arg-type]
    assert found is not None
    return found


def test_of_two_callers_of_a_helper_the_one_on_record_is_meant() -> None:
    behind = decided(MARKER, at(2, "evaluate"), at(5), callers=([at(8)], []))
    inside = decided(MARKER, at(2, "evaluate"), at(5), callers=([at(6)], []))

    assert (behind.site.line, behind.way[-1][0].line) == (6, 10)
    assert (inside.site.line, inside.test) == (6, "step % 5 == 0")


def test_a_decorator_that_remembers_decides_whether_the_body_runs() -> None:
    found = decided(REMEMBERED, at(4, "weights"), at(9))

    assert (found.site.line, found.test) == (1, "functools.lru_cache(maxsize=32)")


def test_a_log_that_formats_lazily_decides_whether_text_is_made() -> None:
    found = decided(LAZY, at(5, "__str__"), at(8))

    assert (found.site.line, found.test) == (10, "log.info('%s', Summary(parameter))")


def test_a_question_with_one_answer_everywhere_is_no_candidate() -> None:
    found = decided(SHARED_QUESTION, at(7, "gather"), at(13))

    assert (found.site.line, found.test) == (5, "if not values")


def test_a_loop_over_what_each_rank_has_is_rather_meant_than_a_question_about_counters() -> None:
    """`every` is what its default says on every rank: all come to the loop in the same steps."""
    found = decided(OWN_NAMES, at(5, "flush"), at(12, "train"))

    assert (found.site.line, found.test) == (4, "for ... in names")
    assert found.way == ((at(3, "flush"), "sorted(self.pending)"),)


def test_a_dtype_that_follows_from_the_data_is_named_where_the_tensor_is_made() -> None:
    sources = {"train.py": dedent(INFERRED)}
    found = deciding_value(sources, at(4, "merge"), DTYPE)

    assert found is not None
    assert found.way[-1] == (at(2, "merge"), "torch.tensor(rows)")
    told = {"train.py": dedent(INFERRED).replace("(rows)", "(rows, dtype=torch.int64)", 2)}
    assert deciding_value(told, at(4, "merge"), DTYPE) is None


def test_tensors_in_the_order_of_a_set_are_led_back_to_the_loop() -> None:
    found = deciding_value({"train.py": dedent(OF_A_SET)}, at(7, "average"), SHAPE)

    assert found is not None
    assert found.way[-1] == (at(5, "average"), "self.names")


def test_where_a_timeout_was_given() -> None:
    assert given_at({"train.py": dedent(TIMEOUT)}, at(3, "__init__"), "timeout") == [
        (at(3, "__init__"), "timedelta(seconds=seconds)"),
        (at(5), "4"),
    ]
    assert given_at({"train.py": dedent(TIMEOUT)}, at(5), "timeout") == []


STORED = """\
    class Timed:
        def __init__(self, run):
            self.run, self.last = run, time.monotonic()
        def __call__(self):
            due = time.monotonic() - self.last > 1
            if not due:
                return
            self.run()
    def main(model, steps):
        timed = Timed(report)
        for step in range(steps):
            model(step)
            timed()
    def report():
        dist.all_reduce(total)
    main(model, 100)
    """


def test_what_was_recorded_to_call_counts_where_the_source_does_not_show_it() -> None:
    found = decided(STORED, at(15, "report"), at(12), callers=([at(8, "__call__"), at(13)], []))

    assert (found.site.line, found.test) == (6, "if not due")
    assert found.way[0][1] == "time.monotonic() - self.last > 1"


DROPPED = """\
    class Gather(Function):
        def forward(ctx, part):
            dist.all_gather(parts, part)
        def backward(ctx, grad):
            dist.all_reduce(grad)
    class Deep(nn.Module):
        def forward(self, x):
            for block in self.blocks:
                if random.random() < self.drop:
                    continue
                x = block(x)
    """


def test_where_no_body_leads_to_both_lines_those_on_record_are_asked() -> None:
    found = decided(DROPPED, at(5, "backward"), at(3, "forward"), callers=([], [at(11, "forward")]))

    assert (found.site.line, found.test) == (9, "if random.random() < self.drop")


@pytest.mark.parametrize("frame", ["<dictcomp>", "<genexpr>"])
def test_the_frame_of_a_comprehension_is_no_function_that_is_called(frame: str) -> None:
    source = """\
class Panel:
    def row(self):
        return {name: float(one.compute()) for name, one in self.metrics.items()}
    def refresh(self, step):
        return str(self.row())
class Session:
    def train_step(self):
        self.loss(self.batch()).backward()
    def after_step(self, step):
        if self.rank == 0:
            print(self.panel.refresh(step))
    def fit(self):
        for step in range(40):
            self.train_step()
            self.after_step(step)
"""
    inside, row, refresh = (
        SourceLine("t.py", 3, frame),
        SourceLine("t.py", 3, "row"),
        SourceLine("t.py", 5, "refresh"),
    )
    usual = SourceLine("t.py", 8, "train_step")
    decision = deciding_condition({"t.py": source}, inside, usual, [0], [1], callers=((row, refresh), ()))

    assert decision is not None
    assert (decision.site.line, decision.call.line) == (10, 11)
