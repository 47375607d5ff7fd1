"""The first place of a finding about replicas is the line that a maintainer would change, where the source shows that line."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import Finding
from distdoctor.recording.recording import Recording
from distdoctor.recording.trace.events import (
    WATCHED,
    Averaging,
    BackwardRng,
    Bypassed,
    Copied,
    CopyUsed,
    FirstStep,
    Orphaned,
    StateLoaded,
)
from distdoctor.recording.trace.layout import TensorFlag, UpdateFlag
from distdoctor.testing.gradients import TrainedJob, trained_job


def source(blocks: dict[int, str]) -> dict[str, str]:
    """The text of /job/train.py, each block beginning in its line."""
    rows = [""] * 60
    for first, block in blocks.items():
        lines = textwrap.dedent(block).strip("\n").splitlines()
        rows[first - 1 : first - 1 + len(lines)] = lines
    return {"/job/train.py": "\n".join(rows) + "\n"}


def told(code: str, recording: Recording) -> Finding:
    (finding,) = PLUGINS.checks[code].look(recording)
    return finding


def lines(finding: Finding) -> list[int]:
    """The first place, then the others."""
    return [finding.place.line, *(place.site.line for place in finding.places)]


# -- a copy that some ranks never refresh ------------------------------------------------------------------------------------

TEACHER = """
class Teacher:
    def __init__(self, student):
        self.net = copy.deepcopy(student)

    def update(self, student):
        for mine, theirs in zip(self.net.parameters(), student.parameters()):
            mine.lerp_(theirs, 0.1)
"""
TRAIN = """
def train(teacher, student, rank):
    for x in data:
        loss(teacher.net(x), student(x)).backward()
        if {guard}:
            teacher.update(student)
        if rank == 0:
            print(teacher.net)
"""


def copied(guard: str) -> Finding:
    job = trained_job(3, buffers={"teacher.net": int(TensorFlag.BUFFER | TensorFlag.COPY)}).initial()
    job.note(Copied("teacher.net", "Linear"), site="train.py:3 __init__")
    job.note(CopyUsed("teacher.net"), site="train.py:22 train")
    for _ in range(5):
        job.step(buffers={1: 1, 2: 1})
    return told("DD222", job.recording(sources=source({1: TEACHER, 20: TRAIN.format(guard=guard)})))


def test_a_copy_that_differs_names_no_condition_when_all_ranks_keep_changing_it() -> None:
    assert lines(copied("rank == 0")) == [3, 3, 22]  # the builder's copies change on every rank, in every step


def test_a_copy_that_a_constructor_takes_is_shown_where_that_is_asked_for() -> None:
    job = trained_job(2, buffers={"teacher.net": int(TensorFlag.BUFFER | TensorFlag.COPY)}).initial()
    job.note(Copied("teacher.net", "Linear"), site="train.py:3 __init__")
    for _ in range(5):
        job.step(buffers={1: 1})
    made = "def setup(net):\n    teacher = Teacher(net)\n    return teacher, DDP(net)\n"

    assert lines(told("DD222", job.recording(sources=source({1: TEACHER, 12: made})))) == [13, 13, 3]


def still(guard: str) -> Finding:
    """Ranks 1 and 2 keep the copy with which they began."""
    job = trained_job(3, buffers={"teacher.net": int(TensorFlag.BUFFER | TensorFlag.COPY)}).initial()
    job.note(Copied("teacher.net", "Linear"), site="train.py:3 __init__")
    job.note(CopyUsed("teacher.net"), site="train.py:22 train")
    for _ in range(5):
        job.step()
    for rank in (1, 2):
        copies = [row for row in job.rows[rank]["digests"] if row["tensor"] == len(job.names) + 1]
        for row in copies:
            row["param"] = copies[0]["param"]
    return told("DD222", job.recording(sources=source({1: TEACHER, 20: TRAIN.format(guard=guard)})))


def test_the_condition_under_which_one_rank_refreshes_the_copy_comes_first() -> None:
    finding = still("rank == 0")

    assert lines(finding) == [23, 23, 24, 3, 22]
    assert finding.places[0].role == "the copy is refreshed only where `rank == 0`"


def test_a_condition_that_parts_the_ranks_otherwise_is_not_blamed() -> None:
    assert lines(still("rank < 2")) == [22, 3, 22]
    assert lines(still("step % 4 == 0")) == [22, 3, 22]


def test_a_condition_on_the_rank_and_something_else_comes_last() -> None:
    finding = still("rank in chosen")

    assert lines(finding) == [22, 3, 22, 23]
    assert finding.places[-1].role == "perhaps: refreshed only where `rank in chosen`"


# -- other places ------------------------------------------------------------------------------------------------------------


def bypassed(forward: str) -> Finding:
    job = trained_job(2).initial()
    job.note(Bypassed("Net", 1), site="train.py:30 train")
    recording = job.step(grads={1: 1}, params={1: 1}, synced=0).recording(
        sources=source(
            {27: f"def train(model):\n    net = {forward}\n    for x in data:\n        loss(net(x)).backward()"}
        )
    )
    return told("DD206", recording)


def test_the_line_that_takes_the_module_out_of_the_wrapper_comes_before_the_forward() -> None:
    finding = bypassed("model.module if is_wrapped(model) else model")

    assert lines(finding)[:3] == [28, 28, 30]
    assert finding.places[0].role == "takes the module out of the wrapper"


def test_a_forward_of_what_comes_from_elsewhere_is_the_first_place() -> None:
    assert lines(bypassed("unwrap(model)"))[:2] == [30, 30]


def by_hand(**odd: Any) -> TrainedJob:
    """Every gradient is reduced in line 42, in the function that line 50 calls."""
    job = trained_job(3, agree=(), wrapped=False).initial()
    job.note(FirstStep(("[64, 20]", "[64]", "[10, 64]"), 1984, 3))
    for last in (False, False, True):
        for shape in ([64, 20], [64], [10, 64]):
            job.collective("all_reduce", shape, site="train.py:42 reduce")
        job.step(loss={0: 2.3, 1: 2.4, 2: 2.5}, **(odd if last else {}))
    return job


def reducing(statement: str = "pass") -> dict[str, str]:
    helper = "def reduce(model):\n    for p in model.parameters():\n        dist.all_reduce(p.grad)\n        {}\n\n\n"
    return source({40: helper.format(statement), 49: "def train(model):\n    reduce(model)\n"})


def test_a_reduction_by_hand_comes_before_the_step_that_it_does_not_serve() -> None:
    finding = told("DD202", by_hand(grads={1: 1, 2: 2}, params={1: 1, 2: 2}).recording(sources=reducing()))

    assert lines(finding)[:3] == [42, 42, 50]
    assert [place.role for place in finding.places[:2]] == ["gradients are reduced", "begins the reduction"]


def summed(statement: str) -> Finding:
    job = by_hand()
    for step in (1, 2):
        own = {0: [1.0, 2.0, 3.0, 4.0], 1: [3.0, 2.0, 1.0, 0.5], 2: [2.0, 2.0, 2.0, 2.0]}
        job.spot(step, own=own, used=[6.0, 6.0, 6.0, 6.5])
    return told("DD209", job.recording(sources=reducing(statement)))


def test_a_division_that_nobody_uses_comes_before_the_reduction() -> None:
    assert lines(summed("p.grad.div(3)")) == [43, 43, 42]
    assert lines(summed("p.grad.clamp_(0)")) == [42, 42]


BUILT = """
def configure(parameters):
    {builds}


def main(net):
    {calls}


def train(optimizer):
    for x in data:
        net(x).backward()

        if not skips:
            optimizer.zero_grad()
            optimizer.step()
"""


def test_an_optimizer_that_a_helper_builds_is_shown_with_the_line_that_calls_the_helper() -> None:
    orphans = Orphaned(("head.weight",), later=True, stale=0, own=3, count=1, nbytes=640)
    job = trained_job(2).initial().step().note(orphans, site="train.py:20 configure")
    for builds, calls, first in (("return Adam(parameters)", "train(configure(net))", 24),
                                 ("train(Adam(parameters))", "configure(net)", 20)):  # fmt: skip
        text = {19: BUILT.format(builds=builds, calls=calls)}
        finding = told("DD211", job.recording(sources=source(text)))

        assert lines(finding) == [first, first, 44 - first, 33]
        assert {place.role for place in finding.places[:2]} == {
            "the optimizer is built",
            "calls the function that builds it",
        }


def test_the_lines_that_change_a_buffer_follow_the_wrapper_that_does_not_broadcast_it() -> None:
    book = """
    class Codebook(nn.Module):
        def __init__(self):
            self.register_buffer("codebook", torch.zeros(4))

        def forward(self, x):
            sums = x.sum(0)
            self.codebook.mul_(0.9).add_(sums, alpha=0.1)
    """
    job = trained_job(2, buffers={"quantizer.codebook": int(TensorFlag.BUFFER)}).initial().step(buffers={1: 1})

    assert lines(told("DD204", job.recording(sources=source({40: book})))) == [45, 45, 46, 14]
    assert lines(told("DD204", job.recording())) == [14, 14]


def unreduced_norm(model: str) -> Recording:
    parameters = {"norm.weight": "[64]", "body.weight": "[64, 20]", "head.weight": "[10, 64]"}
    job = trained_job(2, agree=(), parameters=parameters, owners={"norm.weight": "LayerNorm"}).initial()
    for _ in range(3):
        job.collective("all_reduce", [64, 20]).step(names=["norm.weight"], grads={1: 1}, params={1: 1})
    return job.recording(sources=source({40: model}))


def unreduced(model: str) -> Finding:
    return told("DD221", unreduced_norm(model))


def test_the_line_that_makes_the_layer_comes_before_the_step() -> None:
    model = "class Net(nn.Module):\n    def __init__(self):\n        self.norm = nn.LayerNorm(64)\n"

    assert lines(unreduced(model)) == [42, 42, 33]
    assert lines(unreduced("net = nn.Sequential()\n")) == [33, 33]


@pytest.mark.parametrize(("trades", "found"), [(True, 0), (False, 1)])
def test_the_norm_of_an_expert_is_its_owners_where_ranks_trade_rows(trades: bool, found: int) -> None:
    norm, up = "moe.experts.0.norm.weight", "moe.experts.0.up.weight"
    parameters = {
        norm: "[64]",
        up: "[64, 20]",
        "router.weight": "[2, 20]",
        "body.weight": "[64, 20]",
        "head.weight": "[10, 64]",
    }
    owners = {norm: "LayerNorm"}
    job = trained_job(2, agree=(), parameters=parameters, owners=owners).initial(names=[up], params={1: 1})
    for _ in range(3):
        job.collective("all_to_all" if trades else "all_gather", [64, 20])
        job.step(names=[norm, up], grads={1: 1}, params={1: 1})

    assert len(list(PLUGINS.checks["DD221"].look(job.recording()))) == found


def test_a_norm_that_has_a_weight_for_each_rank_s_own_heads_is_left_alone() -> None:
    model = (
        "class Net(nn.Module):\n    def __init__(self, n):\n        self.norm = HeadNorm(n // dist.get_world_size())\n"
    )

    assert not list(PLUGINS.checks["DD221"].look(unreduced_norm(model)))


def test_the_condition_behind_which_a_rank_changes_its_weights_comes_before_the_step() -> None:
    text = source({30: "def train(model, rank):\n    if rank == 1:\n        nn.init.ones_(model.head.weight)\n"})
    job = trained_job(3).initial().step().step(before={1: 1}, params={1: 1}, names=["head.weight"])

    assert lines(told("DD203", job.recording(sources=text)))[:3] == [31, 31, 32]


def test_where_nobody_saw_when_weights_changed_the_only_such_condition_is_shown_last() -> None:
    text = source({30: "def train(model, rank):\n    if rank == 1:\n        nn.init.ones_(model.head.weight)\n"})
    job = trained_job(3).initial().step().step(params={1: 1}, names=["head.weight"])
    finding = told("DD203", job.recording(sources=text))

    assert (finding.places[-1].site.line, finding.places[-1].ranks) == (32, (1,))
    assert finding.places[-1].role.startswith("perhaps")
    assert finding.place.line != 32


@pytest.mark.parametrize(
    ("seeding", "shown"),
    [
        ("torch.manual_seed(args.seed)", True),
        ("seed_everything(7)", True),
        ("torch.Generator().manual_seed(7)", False),
        ("own.manual_seed(7)", False),
        ("random.seed(7)", False),
        ("torch.manual_seed(args.seed + rank)", False),
    ],
)
def test_of_equal_draws_the_seed_of_the_generator_that_draws_is_shown(seeding: str, shown: bool) -> None:
    job = trained_job(2).note(Averaging((0, 1), "DistributedDataParallel")).initial()
    for number in range(1, 5):
        job.note(BackwardRng(f"a{number}", "", number)).step()
    finding = told("DD216", job.recording(sources=source({20: f"def main(args, rank):\n    {seeding}\n"})))

    assert [place.site.line for place in finding.places if place.role.startswith("seeds")] == [21] * shown


ROUTER = """
class Router(nn.Module):
    def forward(self, x):
        body, weight = self.bias.to_local(grad_placements=[Partial()]), self.weight{local}
        return x @ weight
"""


@pytest.mark.parametrize(
    ("local", "shown"), [(".to_local()", [42, 42]), (".to_local(grad_placements=[Partial()])", [33])]
)
def test_the_line_that_makes_a_replicated_parameter_local_comes_before_the_step(local: str, shown: list[int]) -> None:
    job = trained_job(2, wrapped=False).initial().step(grads={1: 1}, params={1: 1}, names=["head.weight"])
    recording = job.recording(sources=source({40: ROUTER.format(local=local)}))

    assert lines(told("DD202", recording))[: len(shown)] == shown


def scaled(sources: dict[str, str]) -> Finding:
    """Four micro-batches whose loss is divided by four twice."""
    flags, job = UpdateFlag.DIGESTED | UpdateFlag.ONE_LINE, trained_job(2).initial()
    for _ in (1, 2):
        job.step(backwards=4, unsynced=3, flags=flags, roots="div 4;div 4;NllLoss mean")
    return told("DD208", job.recording(sources=sources))


def test_the_divisions_of_a_loss_come_before_its_backward_pass() -> None:
    shown = source(
        {28: "def train(x):\n    loss = criterion(x) / 4\n    loss = loss / accumulation\n    loss.backward()"}
    )

    assert lines(scaled(shown)) == [30, 30, 29, 31, 33]
    assert lines(scaled({})) == [31, 31, 33]


def apart(sources: dict[str, str], *, wrapped: bool) -> Finding:
    """The scales of the loss part in the last step."""
    job = trained_job(2, wrapped=wrapped, agree=None if wrapped else ()).initial()
    job.note(FirstStep(("[64, 20]", "[64]", "[10, 64]"), 1984, 3))
    for scale in ({0: 1024.0, 1: 1024.0}, {0: 1024.0, 1: 1024.0}, {0: 1024.0, 1: 512.0}):
        for shape in ([64, 20], [64], [10, 64]):
            job.collective("all_reduce", shape, site="train.py:30 train")
        job.step(scale=scale, skipped={0: 0, 1: int(scale[1] < 1024)})
    return told("DD802", job.recording(sources=sources))


def test_the_line_that_looks_for_overflow_before_gradients_are_averaged_by_hand_comes_first() -> None:
    train = source(
        {27: "def train(scaler):\n    scaler.unscale_(opt)\n    average(model)\n\n\n\n    scaler.step(opt)\n"}
    )

    assert lines(apart(train, wrapped=False)) == [28, 28, 33, 33]
    assert lines(apart(train, wrapped=True)) == [33, 33, 33]  # there they are averaged in backward
    assert lines(apart({}, wrapped=False)) == [33, 33, 33]


def test_a_line_that_gives_all_ranks_one_random_state_comes_before_the_backward_pass() -> None:
    job = trained_job(2)
    job.note(Averaging((0, 1), "DistributedDataParallel")).initial()
    for number in range(1, 4):
        job.note(BackwardRng(f"a{number}", "drop (Dropout 0.1)", number), site="train.py:12 restore").step()
    text = source(
        {11: "def restore(state):\n    torch.set_rng_state(state)\n\n\ndef load(state):\n    restore(state)\n"}
    )

    assert lines(told("DD216", job.recording(sources=text))) == [12, 12, 16, 31]


# -- replicas that begin with other weights ------------------------------------------------------------------------------------


def test_weights_that_differ_from_the_start_are_shown_where_the_model_was_said_to_be_a_replica() -> None:
    job = trained_job(2, wrapped=False).note(Averaging((0, 1), WATCHED), site="train.py:9 main")

    assert lines(told("DD201", job.initial({1: 1}).step(params={1: 1}).recording())) == [9, 9, 9]


@pytest.mark.parametrize("register", ["register_post_accumulate_grad_hook", "register_state_dict_pre_hook"])
def test_an_optimizer_that_steps_in_a_hook_of_backward_steps_before_the_wrapper_has_averaged(register: str) -> None:
    fuse = f"def fuse(p):\n    def update(p):\n        opt = table[p]\n        opt.step()\n    p.{register}(update)\n"
    job = trained_job(2).initial().step(grads={1: 1}, params={1: 1})
    finding = told("DD202", job.recording(sources=source({30: fuse})))

    hooked = register == "register_post_accumulate_grad_hook"
    assert lines(finding)[:2] == ([33, 34] if hooked else [33, 33])
    assert ("changed afterwards" in finding.why, finding.undecided) == (not hooked, not hooked)


@pytest.mark.parametrize(("backwards", "words"), [(1, "changed afterwards"), (2, "2 backward passes and 1 forward")])
def test_more_backward_passes_than_forwards_are_not_said_to_be_averaged(backwards: int, words: str) -> None:
    finding = told("DD202", trained_job(2).initial().step(grads={1: 1}, params={1: 1}, backwards=backwards).recording())

    assert words in finding.why


@pytest.mark.parametrize(("made", "line"), [("{n for n in table}", 47), ("[n for n in table]", None)])
def test_what_is_packed_in_the_order_of_a_set_adds_up_other_gradients(made: str, line: int | None) -> None:
    sources = reducing()
    text = sources["/job/train.py"].splitlines()
    text[45:47] = [f"names = {made}", "order = list(names)"]
    recording = by_hand(grads={1: 1, 2: 2}, params={1: 1, 2: 2}).recording(sources={"/job/train.py": "\n".join(text)})
    finding = told("DD202", recording)

    assert [p.site.line for p in finding.places if "order of a set" in p.role] == ([line] if line else [])
    assert ("order of a set" in finding.why) == bool(line)


def test_a_copy_that_is_reduced_and_not_written_back_comes_before_its_reduction() -> None:
    copying = [
        "def reduce(model):",
        "    for p in gradients:",
        "        own = p.grad.contiguous()",
        "        dist.all_reduce(own)",
    ]
    sources = source({39: "\n".join(copying), 49: "def train(model):\n    reduce(model)\n"})
    finding = told("DD202", by_hand(grads={1: 1, 2: 2}, params={1: 1, 2: 2}).recording(sources=sources))

    assert lines(finding)[:4] == [41, 41, 42, 50]
    assert "`p.grad.contiguous()`, may be a copy" in finding.why


@pytest.mark.parametrize("kind", ["ReduceLROnPlateau", "StepLR"])
def test_what_a_schedule_waits_for_comes_after_the_line_that_moves_it(kind: str) -> None:
    train = "def fit():\n    for batch in data:\n        opt.step()\n    value = check(model)\n    schedule.step(value.item())\n"
    validate = "def check(model):\n    total = add_up(model)\n    return total / count\n"
    made = f"schedule = {kind}(opt)\n"
    job = trained_job(2).initial()
    for left, right in ((0.4, 0.4), (0.2, 0.4), (0.2, 0.2), (0.1, 0.2)):
        job.step(lr={0: left, 1: right}, hyper={0: int(left * 10), 1: int(right * 10)})
    job.step(params={1: 1}, lr={0: 0.05, 1: 0.1}, hyper={0: 5, 1: 6})
    finding = told("DD218", job.recording(sources=source({20: made, 31: train, 40: validate})))

    on_the_way = [(p.site.line, p.role) for p in finding.places if "goes into the metric" in p.role]
    waits = kind == "ReduceLROnPlateau"
    assert finding.place.line == 35
    assert [line for line, _ in on_the_way] == ([34, 42, 41] if waits else [])
    assert ("left a loop" in finding.why) == (not waits)


LOADING = """
def load(model, path, rank):
    if {test}:
        return
    model.load_state_dict(torch.load(path))
"""


@pytest.mark.parametrize(("test", "first"), [("rank != 0", 21), ("not path.exists()", 23)])
def test_the_condition_that_keeps_other_ranks_from_a_saved_state_comes_before_the_load(test: str, first: int) -> None:
    text = source({20: LOADING.format(test=test)})
    weights = trained_job(3).note(StateLoaded("module", ("Net",), own=3), only=[0], site="train.py:23 load")
    weights = weights.initial({1: 1, 2: 1}).step(params={1: 1, 2: 1})
    moments = (
        trained_job(2).initial().note(StateLoaded("optimizer", ("Adam",), own=3), only=[0], site="train.py:23 load")
    )
    moments = moments.step(state={1: 1}).step(state={1: 1}, params={1: 1})

    for code, job in (("DD201", weights), ("DD205", moments)):
        finding = told(code, job.recording(sources=text))
        assert finding.place.line == first
        assert 23 in [place.site.line for place in finding.places]


CLIP = """
def clip(parameters, limit):
    norm = sum(p.grad.square().sum() for p in parameters).sqrt()
    for p in parameters:
        p.grad.mul_(limit / norm)
"""


def test_the_norm_of_each_rank_comes_before_the_scaling_by_it() -> None:
    job = trained_job(2, agree=()).initial()
    for _ in range(3):
        job.collective("all_reduce", [64, 64]).step(grads={1: 1}, params={1: 1}, norms={1: 0.31})
    finding = told("DD220", job.recording(sources=source({20: CLIP})))

    assert lines(finding) == [21, 21, 23, 33]


def test_a_flag_that_is_set_behind_the_forward_is_shown_with_when_it_is_read() -> None:
    job = trained_job(2).initial()
    job.step(grads={1: 1}, params={1: 1}, backwards=4, synced=1, unsynced=3, loss_site="/job/train.py:14 epoch")
    recording = job.recording(
        sources=source(
            {
                10: """
                def epoch(model, optimizer, batches):
                    for number, batch in enumerate(batches):
                        loss = model(batch) / 4
                        model.require_backward_grad_sync = number % 4 == 3
                        loss.backward()
                        if number % 4 == 3:
                            optimizer.step()
                """
            }
        )
    )
    finding = told("DD207", recording)

    assert lines(finding)[:3] == [13, 13, 14]
    assert finding.places[0].role == "decides on it from the next forward on"
    assert finding.prescriptions[0].change.startswith("set the flag of train.py:13 before the forward")


@pytest.mark.parametrize(("step", "code"), [(1, "DD202"), (2, "DD206")])
def test_a_wrapper_is_gone_past_only_in_the_step_in_which_its_gradients_part(step: int, code: str) -> None:
    job = trained_job(2).initial().step()
    job.note(Bypassed("Head", step, 1, ("head.weight",)), site="train.py:30 train")
    job.step(grads={1: 1}, params={1: 1}, names=["head.weight"])

    checks = [PLUGINS.checks[one] for one in ("DD202", "DD206")]
    assert [one.code for one in examine(job.recording(), checks).findings] == [code]
