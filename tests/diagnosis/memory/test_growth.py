"""What counts as growth of memory, and what only looks like it."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import CERTAIN
from distdoctor.diagnosis.memory.memory import Memory, mib, slope
from distdoctor.diagnosis.memory.oom_message import DEVICE, HOST, request_of
from distdoctor.diagnosis.source.edits import applied
from distdoctor.diagnosis.source.keeping_line import ADDS, CARRIES, PUTS, keeping_line, keeps_hooks
from distdoctor.recording.recording import SourceLine
from distdoctor.recording.trace.events import EvaluationGrew
from distdoctor.recording.trace.layout import HOOKS, HolderFlag
from distdoctor.testing.memory import MIB, memory_job
from distdoctor_checks.memory import bucket_copy

CHECK = PLUGINS.checks["DD401"]


@pytest.mark.parametrize("seed", range(5))
def test_the_slope_is_right_within_a_tenth_although_one_step_in_five_is_an_outlier(seed: int) -> None:
    rng = random.Random(seed)
    steps = np.arange(60.0)
    values = 400 * MIB + 2 * MIB * steps + [rng.gauss(0, MIB) + (300 * MIB if rng.random() < 0.2 else 0) for _ in steps]

    assert abs(slope(steps, values) - 2 * MIB) < 0.2 * MIB


@pytest.mark.parametrize(
    "rss",
    [
        lambda rank, step: 400 * MIB + min(step, 20) * 20 * MIB,  # levels off
        lambda rank, step: 400 * MIB + (300 * MIB if step > 1 else 0),  # optimizer state
        lambda rank, step: 400 * MIB + (200 * MIB if step % 30 < 3 else 0),  # evaluations
        lambda rank, step: 400 * MIB + hash((step, 7)) % 400 * MIB,  # sequences of all lengths
        lambda rank, step: 400 * MIB + min(step, 60) * 10 * MIB,  # a buffer that fills up in half of the time
        lambda rank, step: 400 * MIB + step % 40 * 10 * MIB,  # grows in each epoch, and is given back
    ],
    ids=["levels off", "state", "evaluation", "sequences", "buffer", "epochs"],
)
def test_a_process_that_levels_off_or_gives_back_does_not_grow(rss) -> None:  # type: ignore[no-untyped-def]
    assert CHECK.look(memory_job(1).trains(120, rss=rss).recording()) == []


def test_a_process_that_grows_steadily_is_a_possibility_never_more() -> None:
    rss = lambda rank, step: (400 + 3 * step) * MIB  # noqa: E731
    (finding,) = CHECK.look(memory_job(1).trains(120, rss=rss).recording())

    assert (finding.confidence, finding.severity.word if finding.severity else "") == ("possible", "note")
    assert abs(finding.evidence["bytes_per_step"] - 3 * MIB) < 0.1 * MIB  # type: ignore[operator]
    assert CHECK.look(memory_job(1).trains(40, rss=rss).recording()) == []
    faster = memory_job(1).trains(120, rss=lambda rank, step: (400 + step * step // 40) * MIB)
    assert [one.title.partition(" ")[0] for one in CHECK.look(faster.recording())] == ["resident"]


def test_a_container_is_not_accused_before_24_steps_nor_with_a_bound() -> None:
    looks = {step: {"bytes": step * MIB, "tensors": step} for step in (3, 6, 9, 12, 18, 24, 36, 48)}
    early = {step: looks[step] for step in list(looks)[:5]}

    def found(seen: dict[int, dict[str, int]], label: str = "cache", flags: int = 0) -> list[str]:
        job = memory_job(1).trains(48).holds(label, "train.py:7 train", seen, flags=flags)
        return [f"{one.confidence} {one.severity.word if one.severity else ''}" for one in CHECK.look(job.recording())]

    assert found(looks) == ["likely warning"]
    assert found(early) == []
    assert found(looks, flags=HolderFlag.BOUNDED) == []
    assert found(looks, label="replay_buffer") == ["possible note"]
    assert found({**looks, 48: {"bytes": 36 * MIB, "tensors": 36}}) == []  # has reached its bound
    assert found({step: {"bytes": step // 8 * 8 * MIB, "tensors": step // 8} for step in looks}) == ["likely warning"]
    assert found({step: {"bytes": min(step, 16) // 8 * 8 * MIB, "tensors": step // 8} for step in looks}) == []
    assert found({**looks, 36: {"bytes": 2 * MIB, "tensors": 2}}) == []  # was emptied


def test_hooks_of_which_there_are_ever_more_are_told_although_they_keep_nothing() -> None:
    def found(counts: dict[int, int]) -> list[str]:
        looks = {step: {"length": hooks, "tensors": 0} for step, hooks in counts.items()}
        job = memory_job(1).trains(24).holds("net._forward_hooks", "train.py:0 note", looks, kind=HOOKS)
        return [f"{one.confidence} {one.title}" for one in CHECK.look(job.recording())]

    every_step = {step: 7 * step for step in (3, 6, 9, 12, 18, 24)}

    (told,) = found(every_step)
    assert told.startswith("likely hooks are registered again and again and stay: 7 more every step")
    (seldom,) = found({48: 2, 60: 2, 72: 3, 84: 4, 96: 4, 120: 5})  # by an evaluation each 24 steps
    assert "stay: one more every 24 steps" in seldom
    assert found(dict.fromkeys(every_step, 7)) == []
    assert found({step: min(step, 12) for step in every_step}) == []  # as many as there are layers
    assert found({**every_step, 24: 7}) == []  # were removed


@pytest.mark.parametrize("part", [HolderFlag.PART, HolderFlag(0)])
def test_a_graph_of_which_there_was_no_time_to_count_all_has_not_been_let_go(part: HolderFlag) -> None:
    """Where all was counted, one that has become smaller and still had what a backward pass needs was waiting for it."""
    looks = {
        step: {"nodes": 9 * step, "old_nodes": 9 * (step - 3), "saved": step, "flags": 4} for step in (3, 6, 9, 12)
    }
    looks[24] = {"nodes": 100, "old_nodes": 60, "saved": 10, "flags": 4 | int(part)}
    (holder,) = Memory.of(memory_job(1).trains(24).holds("total", "t.py:3 f", looks).recording()).ranks[0].holders

    assert bool(holder.graph_growth) is bool(part)


def test_a_graph_that_was_let_go_once_is_still_seen_to_have_grown() -> None:
    looks = {step: {"nodes": 9 * step, "old_nodes": 9 * (step - 3)} for step in (3, 6, 9, 12, 18)}
    looks[24] = {"nodes": 9, "old_nodes": 0}
    (holder,) = Memory.of(memory_job(1).trains(24).holds("total", "t.py:3 f", looks).recording()).ranks[0].holders

    assert [look.step for look in holder.graph_growth] == [6, 9, 12, 18]


SOURCE = """
def train(model):
    total, outputs, hidden = 0, [], None
    for inputs in loader:
        out, hidden = model(inputs, hidden)
        loss = criterion(out)
        total = total + loss
        outputs.append(out)
        self.seen[step] = out
        groups[key].append(out)
        mean *= 0.9
        safe = safe.detach() + loss
"""


@pytest.mark.parametrize(
    ("label", "line", "how", "value"),
    [
        ("total", 7, ADDS, "loss"),
        ("outputs", 8, PUTS, "out"),
        ("hidden", 5, CARRIES, "model(inputs, hidden)"),
        ("self.seen", 9, PUTS, "out"),
        ("groups", 10, PUTS, "out"),
        ("mean", 11, ADDS, "0.9"),
    ],
)
def test_the_line_that_keeps_is_read_from_the_source(label: str, line: int, how: str, value: str) -> None:
    found = keeping_line({"t.py": SOURCE}, SourceLine("t.py", 6, "train"), label)

    assert found is not None
    assert (found.site.line, found.how, found.value) == (line, how, value)


def test_what_is_made_anew_or_detached_keeps_nothing() -> None:
    assert keeping_line({"t.py": SOURCE}, SourceLine("t.py", 6, "train"), "loss") is None
    assert keeping_line({"t.py": SOURCE}, SourceLine("t.py", 6, "train"), "safe") is None
    assert keeping_line({}, SourceLine("t.py", 6, "train"), "total") is None


def test_requests_are_read_from_the_words_of_torch_numpy_and_python() -> None:
    cuda = (
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which "
        "5.50 GiB is free. Including non-PyTorch memory, this process has 73.59 GiB memory in use. Of the allocated memory "
        "60.00 GiB is allocated by PyTorch, and 12.50 GiB is reserved by PyTorch but unallocated."
    )
    found = request_of(cuda)
    assert found is not None
    assert (found.of, found.asked, found.cached) == (DEVICE, 20 << 30, int(12.5 * (1 << 30)))
    host = request_of(
        "RuntimeError: [...] DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes. E"
    )
    assert host is not None
    assert (host.of, host.asked) == (HOST, 4096)
    numpy = request_of(
        "_ArrayMemoryError: Unable to allocate 7.45 GiB for an array with shape (1,) and data type float64"
    )
    assert numpy is not None
    assert numpy.asked == int(7.45 * (1 << 30))
    assert request_of("MemoryError: ") is not None
    assert request_of("RuntimeError: shapes cannot be multiplied") is None


def test_sizes_are_written_for_people() -> None:
    assert [mib(size) for size in (5, 2048, 1.5 * MIB, 320 * MIB, 3.25 * 1024 * MIB)] == [
        "5 bytes",
        "2 KiB",
        "1.5 MiB",
        "320 MiB",
        "3.25 GiB",
    ]


def test_a_worker_without_room_in_shared_memory_is_named_by_its_last_words() -> None:
    words = (
        "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Bus error. It is possible that dataloader's workers "
        "are out of shared memory. Please try to raise your shared memory limit."
    )
    job = memory_job(2).trains(4, shm_size=64 * MIB, shm_free=2 * MIB, workers=4).fails(1, words, "train.py:30 train")
    (finding,) = PLUGINS.checks["DD413"].look(job.recording())

    assert (finding.ranks, finding.confidence) == ((1,), "certain")
    assert "/dev/shm has 64 MiB, 2 MiB of it free" in finding.why
    other = (
        memory_job(2).trains(4).fails(1, "RuntimeError: Caught ValueError in DataLoader worker process 0.", "t.py:3 f")
    )
    assert PLUGINS.checks["DD413"].look(other.recording()) == []


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ('history.append({"loss": loss.item(), "out": out})', "out"),
        ("history.append((float(loss), model(x)))", "model(x)"),
        ("history.append([1, out.detach()])", "[1, out.detach()]"),
        ("history.append((out, hidden))", "(out, hidden)"),
    ],
)
def test_of_what_is_kept_together_the_one_element_with_a_graph_is_named(line: str, value: str) -> None:
    source = f"def train():\n    history = []\n    {line}\n"

    found = keeping_line({"train.py": source}, SourceLine("train.py", 2, "train"), "history")

    assert found is not None
    assert found.value == value
    assert found.text[found.at :].startswith(value)


@pytest.mark.parametrize(
    ("line", "words", "code"),
    [
        ('raise MemoryError(f"cannot reserve {size} bytes")', "MemoryError: cannot reserve 64000000 bytes", "DD110"),
        ("rows = bytearray(size)", "MemoryError: ", "DD408"),
        (
            "raise RuntimeError(str(error)) from error",
            "RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes.",
            "DD408",
        ),
    ],
    ids=["a limit of the program", "an allocation", "an allocator's words, raised again"],
)
def test_an_exception_that_the_program_makes_itself_shows_no_failed_allocation(
    line: str, words: str, code: str
) -> None:
    source = f"def reserve(size):\n    {line}\n"
    job = memory_job(2).trains(5).fails(1, words, "t.py:2 reserve")

    told = examine(job.recording(sources={"/job/t.py": source}), [PLUGINS.checks[one] for one in ("DD110", "DD408")])

    assert [(one.code, one.ranks, one.confidence) for one in told.findings] == [(code, (1,), CERTAIN)]


@pytest.mark.parametrize("label", ["model.module.body._forward_hooks", "body._backward_hooks"])
def test_what_torch_keeps_hooks_in_is_known(label: str) -> None:
    assert keeps_hooks(label)


@pytest.mark.parametrize("label", ["loss_hooks", "self.loss_hooks", "_forward_hooks_seen"])
def test_a_list_of_the_users_is_not_taken_for_torchs_hooks(label: str) -> None:
    assert not keeps_hooks(label)


@pytest.mark.parametrize(
    ("torch", "offered"), [("2.14.1", False), ("2.15.0+cpu", True), ("3.0.0a0", True), (None, True)]
)
def test_buckets_that_are_made_lazily_are_offered_to_a_torch_that_knows_them(torch: str | None, offered: bool) -> None:
    check = PLUGINS.checks["DD412"]
    recording = bucket_copy.sick()
    ranks = {rank: replace(log, environment={"torch": torch} if torch else {}) for rank, log in recording.ranks.items()}

    (found,) = examine(replace(recording, ranks=ranks), [check]).findings

    assert ("make-buckets-lazily" in [one.slug for one in found.prescriptions]) == offered


@pytest.mark.parametrize(
    ("line", "edited"),
    [
        ("history.append(out)", "history.append(out.detach())"),
        ("history.append(model(x))", "history.append(model(x).detach())"),
        ("history.append((out, hidden))", None),  # a tuple has no detach()
        ("history.append(tuple(outs))", None),
        ("history.append(out + f(x))", None),  # `out + f(x).detach()` keeps the graph of out
    ],
)
def test_only_a_single_tensor_is_detached_by_a_patch(line: str, edited: str | None) -> None:
    source = f"def train():\n    history = []\n    for x in loader:\n        {line}\n        optimizer.step()\n"
    looks = {step: {"nodes": 9 * step, "old_nodes": 9 * (step - 3), "bytes": 4} for step in (3, 6, 9, 12)}
    job = memory_job(1).trains(12).holds("history", "/job/train.py:5 train", looks)

    (finding,) = examine(job.recording(sources={"/job/train.py": source}), [CHECK]).findings

    (cure,) = finding.prescriptions
    assert finding.place.line == 4
    if edited is None:
        assert cure.edits == ()
    else:
        assert applied(source, cure.edits)[0].splitlines()[3].strip() == edited


def test_a_queue_without_a_bound_that_ran_far_ahead_is_a_note() -> None:
    def found(items: int, each: int = 2 * MIB, label: str = "self.queue (Queue)") -> list[str]:
        looks = {
            step: {"length": held, "tensors": held, "bytes": held * each}
            for step, held in ((3, items // 2), (6, items), (9, items // 3))
        }
        job = memory_job(1).trains(24).holds(label, "train.py:7 fill", looks, kind="deque")
        return [
            f"{one.confidence} {one.severity.word if one.severity else ''} {one.title}"
            for one in CHECK.look(job.recording())
        ]

    assert found(60) == [
        "possible note `self.queue` has no bound, and was up to 60 items ahead of the training: 120 MiB"
    ]
    assert found(60, each=1024) == []  # numbers to be logged
    assert found(4, each=64 * MIB) == []  # read ahead on purpose
    assert found(60, label="self.queue") == []  # a deque that is called so


@pytest.mark.parametrize(("kept", "told"), [("(step, error)", True), ("str(error)", False), ("step", False)])
def test_an_exception_that_is_kept_is_told_as_what_holds_the_tensors(kept: str, told: bool) -> None:
    source = f"""
def train(steps):
    skipped = []
    for step in steps:
        try:
            one(step)
        except ValueError as error:
            skipped.append({kept})
"""
    looks = {step: {"bytes": step * MIB, "tensors": step} for step in (3, 6, 9, 12, 18, 24, 36, 48)}
    job = memory_job(1).trains(48).holds("skipped", "t.py:5 train", looks).recording()
    (finding,) = CHECK.look(replace(job, sources={"/job/t.py": source}))

    assert ("with_traceback(None)" in finding.prescriptions[0].change) == told


GREW = EvaluationGrew("outputs", "", 90 * MIB, 100 * MIB, 520 * MIB, 32)


@pytest.mark.parametrize(
    ("events", "after", "sure"),
    [
        ([GREW], 410, "likely"),
        ([replace(GREW, held=10 * MIB)], 410, ""),  # one evaluation, and nobody knows by what
        ([replace(GREW, held=10 * MIB)] * 2, 410, "possible"),
        ([replace(GREW, batches=16, held=0), replace(GREW, held=0)], 410, ""),  # written down anew while it went on
        ([GREW], 520, "likely"),  # what was freed stays in the process
        ([replace(GREW, label="loader.dataset.rows")], 520, ""),  # a cache of the data
        ([GREW, EvaluationGrew("", "", 0, 0, 420 * MIB, 32)], 410, ""),  # the next one does not grow
        ([replace(GREW, grown=40 * MIB, nbytes=460 * MIB)], 410, ""),  # little, beside the training
    ],
)
def test_what_an_evaluation_keeps_until_its_end(events: list[EvaluationGrew], after: int, sure: str) -> None:
    job = memory_job(1).trains(12, rss=410 * MIB)
    for event in events:
        job.note(event, site="train.py:52 validate")
    found = CHECK.look(job.trains(12, rss=after * MIB).recording())

    assert [one.confidence for one in found] == [sure] * bool(sure)


@pytest.mark.parametrize("room", ["[]", "deque(maxlen=8)", "None"])
def test_what_only_makes_room_keeps_nothing(room: str) -> None:
    source = f"""\
class Probe:
    def __init__(self, names):
        for name in names:
            self.records[name] = {room}
    def hook(self, name, output):
        self.records[name].append(output)
"""
    found = keeping_line({"t.py": source}, SourceLine("t.py", 0, ""), "probe.records")

    assert found is not None
    assert (found.site.line, found.value) == (6, "output")


@pytest.mark.parametrize(
    "registers",
    [
        "self.handles = [m.register_forward_hook(self.made(m)) for m in modules]",
        "self.handles.append(m.register_forward_hook(hook))",
    ],
)
def test_the_line_that_registers_hooks_is_known_by_the_call_wherever_its_handle_goes(registers: str) -> None:
    source = f"class Probe:\n    def __init__(self, modules):\n        {registers}\n"

    found = keeping_line({"t.py": source}, SourceLine("t.py", 0, "fn"), "net.body._forward_hooks")

    assert found is not None
    assert found.site.line == 3
