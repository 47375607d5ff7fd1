"""Real ranks over gloo that hang in ways that people meet, and healthy ones that look most like them."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from distdoctor.errors import DoctorError
from distdoctor.recording.recording import Job, RankEnd, Recording
from distdoctor.recording.source_texts import with_sources
from distdoctor.recording.trace.probe_settings import ProbeSettings
from distdoctor.recording.trace.run_folder import read_run
from jobs import RankResult, run_ranks

LOOK_AFTER = 5.0  # seconds: the ranks hang by then
PATIENCE = 40.0  # seconds: nothing will be said any more


def watched(
    target: Callable[[int], Any],
    *,
    ranks: int = 2,
    seconds: float = LOOK_AFTER,
    until: Callable[[Recording], bool] | None = None,
) -> Recording:
    """What a watcher reads of the job when its ranks have ended, or while they still run: after so many seconds.

    `until`: it looks again and again instead, and what it read is returned as soon as that says so.
    """
    with tempfile.TemporaryDirectory() as folder:
        looks: list[Recording] = []
        over = threading.Event()

        def look() -> None:
            pause = 0.3 if until is not None else seconds
            while not over.wait(pause):
                try:
                    seen = _read(folder, ranks, Job(read_at_ns=time.monotonic_ns(), running=True))
                except (DoctorError, AssertionError):  # no rank has begun, or one is about to
                    continue
                if until is None or until(seen):
                    looks.append(seen)
                    for log in seen.ranks.values():
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(log.pid, signal.SIGKILL)
                    return

        watcher = threading.Thread(target=look)
        watcher.start()
        results = run_ranks(
            _rank, ranks, target, folder, timeout=PATIENCE if until is not None else seconds + 1, join=False
        )
        over.set()
        watcher.join()
        killed = [result for result in results if result.timed_out or (looks and result.exit_code == -signal.SIGKILL)]
        if killed:
            assert looks, "nothing was said while the ranks hung"
            ends = {result.rank: _end(result) for result in results if result not in killed}
            return replace(looks[0], job=replace(looks[0].job, ends=ends))
        return _read(folder, ranks, Job(ends={result.rank: _end(result) for result in results}))


def _end(result: RankResult) -> RankEnd:
    code = result.exit_code or 0
    return RankEnd(None if code < 0 else code, signal=max(0, -code), at_ns=time.monotonic_ns())


def _read(folder: str, ranks: int, job: Job) -> Recording:
    found = read_run(Path(folder))
    assert not found.troubles, found.troubles
    return with_sources(Recording(replace(job, world_size=ranks), found.ranks))


def _rank(rank: int, world_size: int, target: Callable[[int], Any], folder: str) -> None:
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    from distdoctor.probe.start import start

    start(folder, ProbeSettings(frozenset({"collectives", "progress", "samples"})))
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=60))
    torch.manual_seed(0)
    try:
        target(rank)
        if dist.is_initialized():  # a reference training leaves by itself
            dist.destroy_process_group()
    except Exception:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]  # as the interpreter would: the harness has caught it
        os._exit(1)


def line(words: str) -> int:
    """The number of the one line of this file that ends with these words."""
    lines = Path(__file__).read_text("utf-8").splitlines()
    (found,) = [number for number, text in enumerate(lines, 1) if text.endswith(words)]
    return found


class Trainer:
    """The loop that most scripts have: a model in DDP, a loss that is averaged for the log, a checkpoint now and then."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)

    def step(self) -> Tensor:
        loss = self.model(torch.randn(4, 8)).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def average(self, loss: Tensor) -> Tensor:
        total = loss.clone()
        dist.all_reduce(total)
        return total / dist.get_world_size()

    def save(self, step: int) -> None:
        if step % 2:
            dist.barrier()  # others wait for the file


def nothing(rank: int) -> None:
    dist.barrier()


def skips_a_call(rank: int) -> None:
    trainer = Trainer(rank)
    for step in range(8):
        loss = trainer.step()
        if not (rank == 1 and step == 5):
            trainer.average(loss)
        trainer.save(step)


def skips_a_bad_batch(rank: int) -> None:
    trainer = Trainer(rank)
    for step in range(8):
        loss = trainer.step()
        if rank == 1 and step == 5:
            loss = loss * float("nan")
        if not torch.isfinite(loss):
            continue  # by one rank alone
        trainer.average(loss)
        trainer.save(step)


def stops_early(rank: int) -> None:
    trainer = Trainer(rank)
    for step in range(8):
        loss = trainer.step() + rank * step
        if loss > 5:
            break
        trainer.average(loss)
    dist.barrier()  # the end


def saves_alone(rank: int) -> None:
    trainer = Trainer(rank)
    for step in range(8):
        trainer.average(trainer.step())
        if step != 4:
            continue
        if rank == 0:
            dist.barrier()  # of rank 0 alone


def _all_layers(turns: int) -> None:
    """What each layer of a sharded model does, in one line for all."""
    for _ in range(turns):
        dist.all_reduce(torch.ones(4))


@torch.no_grad()
def _sample() -> None:
    _all_layers(3)


def samples_alone(rank: int) -> None:
    """The others answer with the same line of their next step, until they come to something else."""
    for step in range(6):
        _all_layers(2)
        dist.barrier()
        if rank == 0 and step == 3:
            _sample()  # by rank 0 alone


def samples_when_it_is_good(rank: int) -> None:
    for step in range(6):
        _all_layers(2)
        dist.barrier()
        good = torch.ones(1) * step * (1 - rank) > 2.5
        if good and step == 3:
            _sample()  # where it is good


def swallows_an_exception(rank: int) -> None:
    trainer = Trainer(rank)
    for step in range(8):
        loss = trainer.step()
        try:
            if rank == 1 and step == 5:
                raise ValueError("a broken sample")
            trainer.average(loss)
        except ValueError:
            pass
        trainer.save(step)


@contextlib.contextmanager
def _together() -> Iterator[None]:
    """A part of the training that ranks leave together."""
    try:
        yield
    finally:
        dist.barrier()


def waits_on_the_way_out(rank: int) -> None:
    trainer = Trainer(rank)
    with _together():
        for step in range(8):
            channels = {"web": 0, "shop": 1}
            channels["phone" if rank == 1 and step == 5 else "web"]  # an unknown channel
            trainer.average(trainer.step())


def leaves_parts_together(rank: int) -> None:
    """Every part ends with a barrier, and errors that all ranks meet are handled with collectives."""
    trainer = Trainer(rank)
    for step in range(6):
        with _together():
            loss = trainer.step()
        try:
            if step % 2:
                raise ValueError("a step without a report")
            trainer.average(loss)
        except ValueError:
            trainer.average(loss * 2)
            dist.barrier()


def leaves_early(rank: int) -> None:
    trainer = Trainer(rank)
    for step in range(8):
        if rank == 1 and step == 4:
            os._exit(0)
        trainer.average(trainer.step())


class Statistics:
    """A property that communicates, as metric libraries have them."""

    def __init__(self) -> None:
        self.value = torch.ones(3)

    @property
    def mean(self) -> Tensor:
        parts = [torch.zeros(3) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, self.value)  # in a property
        return torch.stack(parts).mean(0)


def prints_a_property(rank: int) -> None:
    trainer, statistics = Trainer(rank), Statistics()
    for step in range(6):
        trainer.average(trainer.step())
        if rank == 0 and step == 3:
            str(statistics.mean)


class Resource:
    """Cleans up together with the others when it is collected."""

    def __init__(self) -> None:
        self.ring = self

    def __del__(self) -> None:
        dist.barrier()  # in __del__


def collects_garbage(rank: int) -> None:
    gc.disable()  # else both may collect, at moments of their own
    trainer = Trainer(rank)
    resource = Resource()
    for step in range(6):
        trainer.average(trainer.step())
        if step == 3:
            del resource
        if step == 4 and rank == 0:
            gc.collect()


def logs_in_a_callback(rank: int) -> None:
    """torch calls back after each step; rank 0 alone asks for the mean there."""
    trainer = Trainer(rank)

    def log(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if rank == 0:
            dist.all_reduce(torch.ones(1))  # in a callback

    for step in range(6):
        if step == 3:
            trainer.optimizer.register_step_post_hook(log)
        trainer.average(trainer.step())


def averages_under_join(rank: int) -> None:
    """join() stands in for the reductions of DDP, not for those of the user."""
    trainer = Trainer(rank)
    with trainer.model.join():
        for _ in range(3 + rank):
            trainer.average(trainer.step())
    dist.barrier()


def gathers_shards_alone(rank: int) -> None:
    """The whole state dict of sharded parameters, asked for where it is written."""
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 2))
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    for _ in range(3):
        model(torch.ones(2, 8)).sum().backward()
    if rank == 0:
        get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))  # of rank 0 alone
    dist.barrier()


class SeesAndReads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.text, self.vision, self.head = nn.Linear(8, 8), nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, words: Tensor, image: Tensor | None) -> Tensor:
        h = self.text(words)
        if image is not None:
            h = h + self.vision(image)  # of ranks with an image
        return cast(Tensor, self.head(h))


def _sees_and_reads(rank: int, *, dummy: bool) -> None:
    model = SeesAndReads()
    for part in (model.text, model.vision, model.head, model):
        fully_shard(part, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    for step in range(4):
        image = None if rank == 1 and step == 2 else torch.ones(2, 4)
        if image is None and dummy:
            image = torch.zeros(2, 4)
        model(torch.ones(2, 8), image).sum().backward()
    dist.barrier()


def batch_without_image(rank: int) -> None:
    """The sharded tower runs on the ranks only whose batch has an image."""
    _sees_and_reads(rank, dummy=False)


def batch_with_dummy_image(rank: int) -> None:
    _sees_and_reads(rank, dummy=True)


class Exchange(torch.autograd.Function):
    """Rows to where they belong; backward sends their gradients back."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, send: list[int], receive: list[int]) -> Tensor:
        ctx.send, ctx.receive = send, receive
        out = rows.new_empty(sum(receive), rows.shape[1])
        dist.all_to_all_single(out, rows.contiguous(), receive, send)  # of rows
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        out = grads[0].new_empty(sum(ctx.send), grads[0].shape[1])
        dist.all_to_all_single(out, grads[0].contiguous(), ctx.send, ctx.receive)
        return out, None, None


def _routes(rank: int, *, in_graph: bool) -> None:
    """Two layers of one expert a rank; in the last step nobody sends anything to that of rank 2 in the second layer."""
    layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
    for step in range(3):
        x = torch.randn(6, 4, requires_grad=True)
        for number, expert in enumerate(layers):
            send = [3, 3, 0] if step == 2 and number == 1 else [1, 2, 3]
            receive = [send[rank]] * 3
            rows = Exchange.apply(x, send, receive)
            made = expert(rows) if len(rows) or in_graph else torch.empty(0, 4)
            x = x + Exchange.apply(made, receive, send)
        x.sum().backward()
    dist.barrier()


def leaves_out_an_exchange(rank: int) -> None:
    _routes(rank, in_graph=False)


def exchanges_with_an_empty_expert(rank: int) -> None:
    _routes(rank, in_graph=True)


def receives_first(rank: int) -> None:
    x = torch.ones(4)
    dist.all_reduce(x)
    dist.recv(x, src=1 - rank)  # both
    dist.send(x, dst=1 - rank)


def wrong_tag(rank: int) -> None:
    x = torch.ones(4)
    if rank == 0:
        dist.send(x, dst=1, tag=7)
    else:
        dist.recv(x, src=0, tag=8)  # never sent
    dist.barrier()


def _tell(number: int, to: int) -> None:
    dist.send(torch.tensor([float(number)]), dst=to)


def _hear(whom: int) -> float:
    told = torch.zeros(1)
    dist.recv(told, src=whom)
    return told.item()


def _work(task: float, *, fails: bool) -> int:
    if task == 5.0 and fails:
        raise ValueError("no such width")
    return int(task) ** 2


def _asks_for_results(rank: int, *, swallows: bool, fails: bool) -> None:
    """Rank 0 gives out tasks and waits for their results; both ends go through helpers."""
    for task in range(10):
        if rank == 0:
            _tell(task, 1)
            _hear(1)
            continue
        try:
            result = _work(_hear(0), fails=fails)
        except ValueError:  # a task that failed
            if swallows:
                continue
            result = -1
        _tell(result, 0)
    dist.barrier()


def answers_no_failed_task(rank: int) -> None:
    _asks_for_results(rank, swallows=True, fails=True)


def answers_each_task(rank: int) -> None:
    _asks_for_results(rank, swallows=False, fails=True)


def _serves(rank: int, *, pushes: int) -> None:
    """Rank 0 receives from anybody, ten times; rank 1 pushes so often."""
    weights = torch.ones(4)
    for _ in range(10 if rank == 0 else pushes):  # of pushes
        if rank == 0:
            dist.send(weights, dst=dist.recv(weights))
        else:
            dist.send(weights, dst=0)
            dist.recv(weights, src=0)
    dist.barrier()


def pushes_to_a_server_that_has_ended(rank: int) -> None:
    _serves(rank, pushes=11)


def pushes_as_often_as_is_served(rank: int) -> None:
    _serves(rank, pushes=10)


def sends_too_often(rank: int) -> None:
    """Every rank ends in order; what rank 0 sent last arrived nowhere."""
    works = []
    for number in range(4):
        if rank == 0:
            works.append(dist.isend(torch.ones(4), dst=1))  # one per round
        elif number < 2:
            dist.recv(torch.ones(4), src=0)
    dist.barrier()


def two_groups(rank: int) -> None:
    groups = [dist.new_group([0, 1]) for _ in range(2)]
    x = torch.ones(4)
    for group in groups if rank == 0 else reversed(groups):
        dist.all_reduce(x, group=group)  # in two orders


def other_shape(rank: int) -> None:
    for step in range(4):
        dist.all_reduce(torch.ones(10 + (rank if step == 2 else 0)), async_op=True)
    time.sleep(60)


def makes_a_group_alone(rank: int) -> None:
    """Only rank 0 makes the group of both."""
    dist.all_reduce(torch.ones(1))
    if rank == 0:
        dist.new_group([0, 1])  # by one of two
    dist.barrier()


def swaps_through_a_helper(rank: int) -> None:
    """Two sums of equal size, which both go through one line of a helper; the one branch has them in another order."""

    def total(x: Tensor) -> Tensor:
        dist.all_reduce(x)  # of whatever comes
        return x

    for _ in range(4):
        loss, hits = torch.ones(4), torch.zeros(4)
        dist.barrier()
        if rank == 1:
            total(hits)  # first
            total(loss)
        else:
            total(loss)
            total(hits)


def drops_handles(rank: int) -> None:
    """Reads what is not there yet."""
    for _ in range(3):
        loss = torch.ones(4)
        dist.all_reduce(loss, async_op=True)  # nobody waits
        loss.div_(2)
    dist.barrier()


def overwrites_what_it_sends(rank: int) -> None:
    """The next activation goes into the buffer from which the last one is still sent."""
    buffer = torch.zeros(1024)
    for step in range(4):
        if rank == 0:
            buffer.fill_(step + 1)
            sent = dist.isend(buffer, dst=1)  # still read
            buffer.mul_(2)
            sent.wait()  # type: ignore[union-attr]
        else:
            dist.recv(buffer, src=0)
    dist.barrier()


def sends_from_slices(rank: int) -> None:
    """One buffer of several slots: while one is on its way the others are filled, and what was waited for is written again."""
    slots = torch.zeros(4, 1024)
    under_way: list[Any] = []
    for step in range(12):
        slot = slots[step % 4]
        if rank == 1:
            dist.recv(slot, src=0)
            continue
        if len(under_way) == 4:
            under_way.pop(0).wait()
        slot.fill_(step)
        under_way.append(dist.isend(slot, dst=1))
    for sent in under_way:
        sent.wait()
    gathered, mine = torch.zeros(16), torch.ones(8)
    handle = dist.all_gather_into_tensor(gathered, mine, async_op=True)
    handle.wait()  # type: ignore[union-attr]
    mine.zero_()
    dist.barrier()


def healthy(rank: int) -> None:
    """Much of what looks sick and is not."""
    trainer = Trainer(rank)
    alone = [dist.new_group([0]), dist.new_group([1])][rank]
    for step in range(4):
        loss = trainer.average(trainer.step())
        dist.all_reduce(loss, group=alone)
        objects: list[Any] = [None, None]
        dist.all_gather_object(objects, {"rank": rank, "text": "x" * (rank * 100)})
        dist.broadcast(loss, src=step % 2)
        trainer.save(step)
    _two_models(rank)
    _roots_in_turn(rank)
    _splits_and_handles(rank)
    if rank == 0:
        time.sleep(1.0)  # writes a checkpoint
    dist.barrier()
    with trainer.model.join():
        for _ in range(3 + rank):
            trainer.step()
    _pipeline(rank)
    dist.monitored_barrier()


def _two_models(rank: int) -> None:
    """A GAN: the critic takes more steps than the generator."""
    generator, critic = Trainer(rank), Trainer(rank)
    for _ in range(3):
        critic.step()
        critic.step()
        generator.step()


def _roots_in_turn(rank: int) -> None:
    x = torch.ones(4)
    for root in (0, 1, 0, 1):
        parts = [torch.zeros(4) for _ in range(2)] if rank == root else None
        dist.gather(x, parts, dst=root)
        dist.scatter(x, parts, src=root)
        dist.reduce(x, dst=root)


def _splits_and_handles(rank: int) -> None:
    sizes = [1, 2] if rank == 0 else [3, 4]
    received = [1, 3] if rank == 0 else [2, 4]
    dist.all_to_all_single(torch.zeros(sum(received)), torch.ones(sum(sizes)), received, sizes)
    handles = [dist.all_reduce(torch.ones(size), async_op=True) for size in (3, 5, 7)]
    dist.barrier()
    for handle in reversed(handles):
        handle.wait()
    if rank == 1:
        dist.new_group([1], use_local_synchronization=True)
    dist.all_reduce(torch.ones(2), async_op=True).get_future().wait()
    looked_at = dist.all_reduce(torch.ones(2), async_op=True)
    while not looked_at.is_completed():
        time.sleep(0.001)
    ahead = None
    for _ in range(4):  # the last one is left over
        following = dist.broadcast(torch.ones(2), src=0, async_op=True)
        if ahead is not None:
            ahead.wait()
        ahead = following


def _pipeline(rank: int) -> None:
    x = torch.ones(8)
    for tag in range(3):
        if rank == 0:
            dist.send(x, dst=1, tag=tag)
        else:
            dist.recv(x, src=0, tag=tag)
    for work in dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, x, 1 - rank), dist.P2POp(dist.irecv, x.clone(), 1 - rank)]
    ):
        work.wait()
