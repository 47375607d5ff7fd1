"""Every operation counts: which, on which group, with whom, from which of the user's lines."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from distdoctor.diagnosis.derived import derived
from distdoctor.diagnosis.replicas.gradients import Gradients
from distdoctor.recording.recording import Call, Recording
from distdoctor.recording.trace.layout import CallFlag
from distdoctor.recording.trace.probe_settings import ProbeSettings
from distdoctor.recording.trace.run_folder import read_run

SCRIPT = Path(__file__).parent / "all_operations.py"
# The gloo of torch 2.14 makes calls on lists of these, before any hook is asked.
MADE_LISTS_OF = {
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "all_to_all_single": "all_to_all",
}
pytestmark = pytest.mark.job


def torch_version() -> tuple[int, ...]:
    return tuple(map(int, metadata.version("torch").partition("+")[0].split(".")[:2]))


def launch(script: Path, folder: Path, *arguments: str, ranks: int, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a script under plain torchrun with the probe recording into `folder`."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), str(script), *arguments]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **ProbeSettings().hand_over(folder), "OMP_NUM_THREADS": "1", **env},
    )


@pytest.fixture(scope="module", params=["hooks", "dispatcher"])
def seen_by(request: pytest.FixtureRequest) -> str:
    """What tells of the calls; the dispatcher is the only one before torch 2.14."""
    seen: str = request.param
    return seen


@pytest.fixture(scope="module")
def recording(seen_by: str, tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """All operations as seen in either way."""
    folder = tmp_path_factory.mktemp("run")
    done = launch(SCRIPT, folder, ranks=3, DISTDOCTOR_COLLECTIVES=seen_by)
    # The exit code says nothing: torch 2.13 and 2.15 sometimes abort in the threads of monitored_barrier, with or without us.
    assert done.stdout.count("all done") == 3, done.stderr
    return read_run(folder)


def calls(recording: Recording, rank: int, function: str) -> list[Call]:
    log = recording.ranks[rank]
    return [call for row in log.calls if (call := log.call(row)).site.function == function]


def words(call: Call) -> tuple[object, ...]:
    return call.op.word, call.dtype, call.shape, call.reduce_op.name, call.root


def test_each_operation_is_recorded_with_what_must_agree(recording: Recording, seen_by: str) -> None:
    as_lists = MADE_LISTS_OF if seen_by == "hooks" and torch_version() < (2, 15) else {}
    for rank in range(3):
        assert [words(call) for call in calls(recording, rank, "world")] == [
            ("all_reduce", "float32", "[4]", "MAX", -1),
            ("broadcast", "float32", "[4]", "NONE", 2),
            ("reduce", "float32", "[4]", "PRODUCT", 1),
            ("barrier", "", "", "NONE", -1),
            ("all_gather", "float32", "[4]", "NONE", -1),
            (as_lists.get("all_gather_into_tensor", "all_gather_into_tensor"), "float32", "[4]", "NONE", -1),
            (as_lists.get("reduce_scatter_tensor", "reduce_scatter_tensor"), "float32", "[4]", "SUM", -1),
            ("gather", "float32", "[4]", "NONE", 0),
            ("scatter", "float32", "[4]", "NONE", 0),
            (as_lists.get("all_to_all_single", "all_to_all_single"), "float32", "[3]", "NONE", -1),
            ("monitored_barrier", "", "", "NONE", -1),
        ]


def test_the_line_is_the_users_not_torchs(recording: Recording) -> None:
    source = SCRIPT.read_text().splitlines()

    for call in calls(recording, 1, "world"):
        assert call.site.path == str(SCRIPT)
        assert call.op.word.replace("_tensor", "") in source[call.site.line - 1].replace("_tensor", "")


def test_members_agree_on_every_signature_and_every_prefix(recording: Recording) -> None:
    def world_calls(rank: int) -> list[tuple[int, int, int, int]]:
        log = recording.ranks[rank]
        rows = [r for r in log.calls if log.text(r["group"]) == "0" and log.call(r).op.word not in ("send", "recv")]
        return [(int(r["number"]), int(r["signature"]), int(r["prefix"]), int(r["site_prefix"])) for r in rows]

    assert world_calls(0) == world_calls(1) == world_calls(2)
    assert [number for number, *_ in world_calls(0)] == list(range(1, len(world_calls(0)) + 1))


def test_point_to_point_names_its_peer_tag_and_batch(recording: Recording) -> None:
    (send, *_), (receive, *_) = calls(recording, 0, "pairs"), calls(recording, 1, "pairs")
    assert (send.op.word, send.root, send.tag, send.is_async) == ("send", 1, 7, False)
    assert (receive.op.word, receive.root, receive.tag, receive.is_async) == ("recv", 0, 7, False)
    assert all(one.entered_ns < one.returned_ns for one in (send, receive))

    batch = calls(recording, 2, "pairs")
    assert [(call.op.word, call.root) for call in batch] == [("send", 0), ("recv", 1)]
    assert all(call.flags & CallFlag.COALESCED for call in batch)


def test_object_collectives_are_marked_because_their_sizes_are_data(recording: Recording) -> None:
    assert calls(recording, 0, "objects")
    assert all(call.flags & CallFlag.OBJECT for call in calls(recording, 0, "objects"))


def test_a_subgroup_has_its_own_numbers_and_names_global_ranks(recording: Recording) -> None:
    assert calls(recording, 0, "half") == []
    broadcast, reduce = calls(recording, 2, "half")
    assert (broadcast.number, broadcast.root, broadcast.dtype) == (1, 2, "int64")
    assert (reduce.number, reduce.is_async) == (2, True)
    (group,) = (g for g in recording.ranks[2].group_list() if g.name == broadcast.group)
    assert group.ranks == (1, 2)
    assert group.made_at.function == "half"


def test_ddp_buckets_issued_by_cpp_carry_the_line_of_backward(recording: Recording) -> None:
    issued = calls(recording, 0, "ddp")
    assert all(call.flags & CallFlag.NATIVE for call in issued)
    bucket = issued[-1]
    assert (bucket.op.word, bucket.shape) == ("all_reduce", "[20]")
    assert "backward()" in SCRIPT.read_text().splitlines()[bucket.site.line - 1]


def test_a_synchronous_call_is_seen_to_come_back(recording: Recording) -> None:
    for call in calls(recording, 0, "world"):
        assert call.returned_ns > call.entered_ns > 0


MANY_BUCKETS = """
import torch, torch.distributed as dist

def train():
    layers = [torch.nn.Linear(64, 64) for _ in range(20)]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.05)
    for _ in range(40):
        model(torch.randn(8, 64)).sum().backward()
    dist.barrier()

dist.init_process_group("gloo")
train()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("way", ["hooks", "dispatcher"])
def test_many_buckets_in_flight_do_not_stop_each_other(way: str, tmp_path: Path) -> None:
    """gloo's thread takes the GIL to drop a bucket that Python has seen: whoever holds it while issuing would wait forever."""
    script = tmp_path / "many_buckets.py"
    script.write_text(MANY_BUCKETS)
    folder = tmp_path / "run"
    folder.mkdir()

    launch(script, folder, ranks=2, DISTDOCTOR_COLLECTIVES=way)

    for log in read_run(folder).ranks.values():
        assert log.call(log.calls[-1]).op.word == "barrier"
        assert log.calls[-1]["returned_ns"] > 0


WITHOUT_FRAMES = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = DistributedDataParallel(torch.nn.Linear(2, 1))

class Deep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value, left):
        ctx.left = left
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        with torch.enable_grad():
            if ctx.left:
                Deep.apply(torch.ones(1, requires_grad=True), ctx.left - 1).backward()
            else:
                model(torch.ones(1, 2)).sum().backward()
        return gradient, None

optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(2):
    optimizer.zero_grad()
    Deep.apply(torch.ones(1, requires_grad=True), 60).backward()
    optimizer.step()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("way", ["hooks", "dispatcher"])
def test_a_thread_of_autograd_has_no_python_frame_and_is_recorded(way: str, tmp_path: Path) -> None:
    """So it is with every device but the CPU; there, from 60 passes within each other on."""
    script, folder = tmp_path / "deep.py", tmp_path / "run"
    script.write_text(WITHOUT_FRAMES)
    folder.mkdir()
    env = {**os.environ, **ProbeSettings().hand_over(folder), "RANK": "0", "DISTDOCTOR_COLLECTIVES": way}

    done = subprocess.run([sys.executable, script], env=env, timeout=60, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    read = read_run(folder)
    assert not read.troubles
    reduced = [call for call in map(read.ranks[0].call, read.ranks[0].calls) if call.op.word == "all_reduce"]
    assert [call.site.function for call in reduced] == ["backward", "backward"]


LEAVING = """
import torch, torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(torch.ones(1))
"""


def test_a_rank_that_never_destroys_its_group_ends_cleanly(tmp_path: Path) -> None:
    env = {**os.environ, **ProbeSettings().hand_over(tmp_path), "RANK": "0"}

    done = subprocess.run([sys.executable, "-c", LEAVING], env=env, timeout=60)

    assert done.returncode == 0
    assert len(read_run(tmp_path).ranks[0].calls) == 1


RAISING = """
import torch, torch.distributed as dist
from distdoctor.probe import writer

def broken(*args, **kwargs):
    raise RuntimeError("planted")

writer.Ring.write = writer.Ring.patch = writer.Ring.overwrite = writer.Texts.id = broken
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
data = torch.utils.data.TensorDataset(torch.ones(32, 4))
sampler = torch.utils.data.DistributedSampler(data)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for (x,) in torch.utils.data.DataLoader(data, 8, sampler=sampler):
        model(x).sum().backward()
        optimizer.step()
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == dist.get_world_size()
dist.new_group([0])
dist.barrier()
dist.destroy_process_group()
print("trained")
"""


def test_a_probe_that_fails_everywhere_falls_silent_and_training_goes_on(tmp_path: Path) -> None:
    script = tmp_path / "raising.py"
    script.write_text(RAISING)
    folder = tmp_path / "run"
    folder.mkdir()

    done = launch(script, folder, ranks=2)

    assert done.returncode == 0, done.stderr
    assert done.stdout.count("trained") == 2


FAMILY = """
import os, subprocess, sys
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

class Spying(TensorDataset):
    def __getitem__(self, i):
        from distdoctor.probe import start
        assert start._rank is None or start._rank.silent or start._rank.trace is None
        return super().__getitem__(i)

def main():
    dist.init_process_group("gloo")
    for context in ("fork", "spawn"):
        for batch in DataLoader(Spying(torch.ones(4, 1)), 2, num_workers=1, multiprocessing_context=context):
            pass
    subprocess.run([sys.executable, "-c", "import torch; torch.ones(1)"], check=True)
    pid = os.fork()
    if pid == 0:
        p = torch.ones(1, requires_grad=True)
        torch.optim.SGD([p], 0.1).step()
        os._exit(0)
    os.waitpid(pid, 0)
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()

if __name__ == "__main__":
    main()
"""


def test_loader_workers_subprocesses_and_forks_of_a_rank_record_nothing(tmp_path: Path) -> None:
    script = tmp_path / "family.py"
    script.write_text(FAMILY)
    folder = tmp_path / "run"
    folder.mkdir()

    done = launch(script, folder, ranks=1)

    assert done.returncode == 0, done.stderr
    assert len(list(folder.glob("*.trace"))) == 1
    log = read_run(folder).ranks[0]
    assert len(log.calls) == 1
    assert len(log.steps) == 0


HALF_BLIND = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
for step in range(20):
    if step == 7 and dist.get_rank() == 1:
        from distdoctor.probe.collectives import stream as collectives
        collectives.monotonic_ns = None  # from here on every record fails
    dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
"""


def test_a_rank_whose_recorder_fell_silent_is_not_accused_of_having_left(tmp_path: Path) -> None:
    from distdoctor import plugins
    from distdoctor.diagnosis.examination import examine

    script = tmp_path / "half_blind.py"
    script.write_text(HALF_BLIND)
    folder = tmp_path / "run"
    folder.mkdir()

    done = launch(script, folder, ranks=2)
    diagnosis = examine(read_run(folder), plugins.load().checks.values())

    assert done.returncode == 0, done.stderr
    assert [(finding.code, finding.ranks) for finding in diagnosis.findings] == [("DD902", (1,))]
    reasons = {item.code: item.reason for item in diagnosis.not_examined}
    assert reasons["DD101"].startswith("the recorder of rank 1 fell silent: ")
    assert "TypeError" in reasons["DD101"]


COMPILED = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
def step(x):
    parts = torch.empty(x.numel() * dist.get_world_size())
    dist.all_gather_into_tensor(parts, x)
    dist.all_reduce(x)
    return parts.sum() + x.sum()
compiled = torch.compile(step, backend="eager", fullgraph=True)
assert compiled(torch.arange(4.0)) == step(torch.arange(4.0))
model = torch.compile(torch.nn.Linear(4, 4), backend="aot_eager", fullgraph=True)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
dist.destroy_process_group()
"""


def test_a_whole_graph_is_compiled_as_without_us(tmp_path: Path) -> None:
    script = tmp_path / "compiled.py"
    script.write_text(COMPILED)
    folder = tmp_path / "run"
    folder.mkdir()

    done = launch(script, folder, ranks=1)

    assert done.returncode == 0, done.stderr
    recording = read_run(folder)
    assert recording.troubles == ()
    assert len(recording.ranks[0].steps) == 3


COMPILED_WRAPPER = """
import contextlib, torch, torch._dynamo, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 4))
compiled = torch.compile(model, backend="eager")
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(4):
    for micro in range(2):
        with model.no_sync() if not micro else contextlib.nullcontext():
            (compiled(torch.ones(3, 4)).sum() / 2).backward()
    optimizer.step()
    optimizer.zero_grad()
failed = str([*torch._dynamo.utils.guard_failures.values()])
assert "synced ==" not in failed and "distdoctor" not in failed, failed
dist.destroy_process_group()
"""


def test_forwards_of_a_compiled_wrapper_are_counted_without_a_guard_of_ours(tmp_path: Path) -> None:
    script = tmp_path / "wrapper.py"
    script.write_text(COMPILED_WRAPPER)
    folder = tmp_path / "run"
    folder.mkdir()

    done = launch(script, folder, ranks=1)

    assert done.returncode == 0, done.stderr
    steps = [one for one in derived(Gradients, read_run(folder)).ranks[0].updates if one.step]
    assert {(one.number("synced"), one.number("unsynced")) for one in steps} == {(1, 1)}


def test_the_probe_swallows_no_interrupt() -> None:
    from distdoctor.probe.context import Rank

    def interrupted() -> None:
        raise KeyboardInterrupt

    rank = Rank("", ProbeSettings(frozenset()))

    with pytest.raises(KeyboardInterrupt):
        rank.guarded(interrupted)()
    assert not rank.silent
