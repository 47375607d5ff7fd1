"""Small trainings that lose time in one way each, and the healthy ones that look most like them."""

from __future__ import annotations

import gc
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from distdoctor.recording.recording import Job, Recording
from distdoctor.recording.trace.run_folder import read_run
from jobs import run_ranks, values

STEPS = 26


def watched(target: Callable[..., Any], *, ranks: int = 2, timeout: float = 120, **about: Any) -> Recording:
    """The recording of a job that trains one small model behind DistributedDataParallel."""
    with tempfile.TemporaryDirectory() as folder:
        values(run_ranks(_watched, ranks, target, about, folder=folder, timeout=timeout))
        recording = read_run(Path(folder))
        assert not recording.troubles, recording.troubles
        source = Path(__file__).read_text("utf-8")
        return Recording(Job(world_size=ranks), recording.ranks, sources={__file__: source})


def _watched(rank: int, world_size: int, target: Callable[..., Any], about: dict[str, Any]) -> None:
    torch.manual_seed(0)
    target(rank, **about)


def line(words: str) -> int:
    """The number of the one line of this file that holds these words."""
    lines = Path(__file__).read_text("utf-8").splitlines()
    (found,) = [number for number, text in enumerate(lines, 1) if words in text and "line(" not in text]
    return found


class Slow(Dataset[tuple[Tensor, int]]):
    """Samples that take a while to make."""

    def __init__(self, seconds: float, size: int = 4096) -> None:
        self.seconds, self.size = seconds, size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if self.seconds:
            time.sleep(self.seconds)
        return torch.full((64,), float(index % 7)), index % 10


class Net(nn.Module):
    """Two layers, with work between them in both directions: the gradients of the first one come last."""

    def __init__(self, width: int, forward: float, backward: float) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(64, width), nn.Linear(width, 10)
        self.seconds = (forward, backward)

    def forward(self, inputs: Tensor) -> Tensor:
        scores: Tensor = self.head(Working.apply(self.body(inputs).relu(), *self.seconds))
        return scores


def batches(rank: int, *, data: float = 0.0, workers: int = 0) -> Any:
    return DataLoader(Slow(data), batch_size=4, num_workers=workers)


def work(seconds: float) -> None:
    """Computing, of which a machine with few cores does not notice anything."""
    if seconds:
        time.sleep(seconds)


class Working(torch.autograd.Function):
    """The identity, that takes its time forward and backward."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, forward: float, backward: float) -> Tensor:
        ctx.seconds = backward
        work(forward)
        return inputs.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        work(ctx.seconds)
        return grads[0], None, None


def training(
    rank: int,
    *,
    data: float = 0.0,
    forward: float = 0.010,
    backward: float = 0.010,
    odd: dict[str, float] | None = None,
    odd_rank: int = 1,
    steps: int = STEPS,
    accumulate: int = 1,
    no_sync: bool = False,
    workers: int = 0,
    width: int = 64,
    each_step: Callable[[nn.Module], object] = lambda model: None,
    **wrapper: Any,
) -> None:
    """An ordinary loop; `odd` are seconds that one rank takes instead."""
    if odd and rank == odd_rank:
        data, forward, backward = (odd.get(name, given) for name, given in
                                   (("data", data), ("forward", forward), ("backward", backward)))  # fmt: skip
    model = DistributedDataParallel(Net(width, forward, backward), **wrapper)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = batches(rank, data=data / 4, workers=workers)
    for made, (inputs, targets) in enumerate(loader, 1):  # the loop
        is_last = made % accumulate == 0
        with model.no_sync() if no_sync and not is_last else nullcontext():
            loss = cross_entropy(model(inputs), targets) / accumulate
            loss.backward()  # every micro-step
        if is_last:
            each_step(model)
            optimizer.step()
            optimizer.zero_grad()
        if made == steps * accumulate:
            break


def slow_data(rank: int, **about: Any) -> None:
    training(rank, odd={"data": 0.030}, **about)


def slow_data_everywhere(rank: int) -> None:
    training(rank, data=0.030)


def read_ahead(rank: int) -> None:
    """The same slow samples, made by workers while the model is at work."""
    training(rank, data=0.012, workers=1, forward=0.02, backward=0.02, steps=22)


class Opened(Slow):
    """Samples of a file that each worker opens, slowly, with the first one."""

    def __init__(self) -> None:
        super().__init__(0.0, 96)
        self.opened = False

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if not self.opened:
            time.sleep(0.6)
            self.opened = True
        return super().__getitem__(index)


def kept_by_workers(rank: int, *, lives_on: bool = False, anew: bool = False, passes: int = 6) -> None:
    model = DistributedDataParallel(nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = None
    for _ in range(passes):
        if loader is None or anew:
            loader = DataLoader(Opened(), 16, num_workers=1, persistent_workers=lives_on)  # its workers
        for inputs, targets in loader:
            optimizer.zero_grad()
            cross_entropy(model(inputs), targets).backward()
            optimizer.step()


def slow_forward(rank: int, **about: Any) -> None:
    training(rank, odd={"forward": 0.035}, **about)


def slow_backward(rank: int, **about: Any) -> None:
    training(rank, odd={"backward": 0.035}, **about)


def ordinary(rank: int, **about: Any) -> None:
    training(rank, **about)


def evaluating(rank: int, *, together: bool = False) -> None:
    """Every few steps it is looked how good the model is."""
    model = DistributedDataParallel(Net(64, 0.0, 0.0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(2 * STEPS):
        optimizer.zero_grad()
        cross_entropy(model(torch.ones(8, 64)), torch.zeros(8, dtype=torch.int64)).backward()
        optimizer.step()
        if step % 6 == 5 and (together or rank == 0):  # the others go on
            work(0.7 if together else 1.4)


def synchronised_every_micro_step(rank: int, **about: Any) -> None:
    training(rank, accumulate=4, forward=0.004, backward=0.004, **about)


def two_optimizers(rank: int, *, in_turns: bool = False) -> None:
    """Two optimizers and windows of 2 to 4 micro-batches. `in_turns`: each optimizer has a window of its own."""
    model = DistributedDataParallel(Net(64, 0.0, 0.0))
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.01) for part in (model.module.body, model.module.head)]
    loader = iter(batches(rank))
    for step in range(16):
        length = 1 if in_turns else 2 + step % 3
        for stepping in [[one] for one in optimizers] if in_turns else [optimizers]:
            for _ in range(length):
                inputs, targets = next(loader)
                (cross_entropy(model(inputs), targets) / length).backward()  # in every micro-step of both
            for one in stepping:
                one.step()
            model.zero_grad()


def two_lines(rank: int, *, forward_too: bool = False) -> None:
    """Windows of two micro-batches, of which the first has a line of its own; `forward_too`: within no_sync, not before it."""
    model = DistributedDataParallel(Net(64, 0.0, 0.0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = iter(batches(rank))
    for number in range(32):
        inputs, targets = next(loader)
        is_last = number % 2 == 1
        with nullcontext() if is_last or not forward_too else model.no_sync():
            loss = cross_entropy(model(inputs), targets) / 2
        if is_last:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        else:
            with model.no_sync():  # the backward alone
                loss.backward()


def left_over(rank: int) -> None:
    """Epochs of five micro-batches in windows of two: the last one is zeroed as the next epoch begins."""
    model = DistributedDataParallel(Net(64, 0.0, 0.0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = iter(batches(rank))
    for _ in range(6):
        for number in range(5):
            if number % 2 == 0:
                optimizer.zero_grad()
            inputs, targets = next(loader)
            (cross_entropy(model(inputs), targets) / 2).backward()  # each averages
            if number % 2 == 1:
                optimizer.step()


def with_barriers(rank: int) -> None:
    def meet(model: nn.Module) -> None:
        dist.barrier()  # protects nothing

    training(rank, forward=0.005, backward=0.005, each_step=meet)


def barriers_now_and_then(rank: int) -> None:
    made = 0

    def meet(model: nn.Module) -> None:
        nonlocal made
        made += 1
        if made % 5 == 0:
            dist.barrier()

    training(rank, forward=0.005, backward=0.005, each_step=meet)


class Masked(nn.Module):
    """A table of constants beside the weights, and one that counts where that is asked for."""

    def __init__(self, counts: bool) -> None:
        super().__init__()
        self.body, self.counts = nn.Linear(64, 10), counts
        self.register_buffer("mask", torch.ones(600, 600).tril())
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        if self.counts and self.training:
            self.seen += 1
        return self.body(inputs) * self.mask[-1, :10]


class Drawing:
    """Draws inputs by what it holds itself, and nobody sends."""

    def __init__(self) -> None:
        self.scale = torch.ones(8)


def sending_masks(rank: int, *, counts: bool = False, sends: bool = True) -> None:
    torch.manual_seed(0)
    model = DistributedDataParallel(Masked(counts), broadcast_buffers=sends)  # sends its mask
    optimizer, drawing = torch.optim.SGD(model.parameters(), lr=0.01), Drawing()
    for _ in range(24):
        optimizer.zero_grad()
        cross_entropy(model(torch.randn(8, 64) * drawing.scale.mean()), torch.randint(10, (8,))).backward()
        optimizer.step()


def searching(rank: int) -> None:
    training(rank, forward=0.002, backward=0.002, find_unused_parameters=True)  # finds nothing


class Branches(nn.Module):
    """A layer that is left out now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.side, self.head = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 10)
        self.calls = 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += 1
        hidden = self.body(inputs)
        scores: Tensor = self.head(hidden if self.calls % 10 == 0 else self.side(hidden))
        return scores


def searching_no_more(rank: int) -> None:
    """Told after it was made that the graph stays as it is."""
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 10)), find_unused_parameters=True)
    model._set_static_graph()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.ones(4, 64)).mean().backward()
        optimizer.step()


def searching_for_a_reason(rank: int) -> None:
    model = DistributedDataParallel(Branches(), find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.ones(4, 64)).mean().backward()
        optimizer.step()


class Wide(nn.Module):
    """One large layer and work that comes after it in backward (`hidden`), or before."""

    def __init__(self, width: int, seconds: float, hidden: bool) -> None:
        super().__init__()
        self.body, self.large = nn.Linear(64, 64), nn.Linear(64, width)
        self.seconds, self.hidden = seconds, hidden

    def forward(self, inputs: Tensor) -> Tensor:
        if self.hidden:
            return self.large(Working.apply(self.body(inputs), 0.0, self.seconds))  # type: ignore[no-any-return]
        return Working.apply(self.large(self.body(inputs)), 0.0, self.seconds)  # type: ignore[no-any-return]


def on_the_wire(
    rank: int, *, hidden: bool = False, width: int = 120_000, seconds: float = 0.0, steps: int = STEPS
) -> None:
    model = DistributedDataParallel(Wide(width, seconds, hidden), bucket_cap_mb=1 if hidden else 200)
    optimizer = torch.optim.SGD(model.module.body.parameters(), lr=0.01)  # the large layer is only sent
    for _ in range(steps):
        model.zero_grad()
        model(torch.ones(1, 64)).mean().backward()  # what is sent
        optimizer.step()


class Stage(nn.Module):
    """One part of a model, that takes its time."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.linear, self.seconds = nn.Linear(16, 16), seconds

    def forward(self, inputs: Tensor) -> Tensor:
        result: Tensor = Working.apply(self.linear(inputs), self.seconds, self.seconds)
        return result


def pipelined(rank: int, *, seconds: tuple[float, float] = (0.002, 0.008), steps: int = STEPS) -> None:
    stage = PipelineStage(Stage(seconds[rank]), rank, 2, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 4, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(stage.submod.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        inputs = torch.ones(8, 16)
        schedule.step(*((inputs,) if rank == 0 else ()), target=inputs if rank else None)  # the stages
        optimizer.step()


def drained(rank: int, *, slow: float = 0.0, steps: int = STEPS) -> None:
    """Stages by hand, whose norms are added up when the last gradient has come back to the first; `slow`: that one rests, too."""
    weight = nn.Parameter(torch.ones(16))
    optimizer = torch.optim.SGD([weight], lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        message, sent = torch.ones(8, 16), []
        for _ in range(2):
            if rank:
                dist.recv(message, 0)
            work(0.025)
            output = message * weight
            if rank:
                output.sum().backward()
                work(0.025)
                sent.append(dist.isend(torch.ones(8, 16), 0))
            else:
                dist.send(output.detach(), 1)
        for _ in range(0 if rank else 2):
            dist.recv(message, 1)
            work(0.025)
        if not rank:
            (torch.ones(8, 16) * weight).sum().backward()
            work(slow)
        for one in sent:
            one.wait()
        assert weight.grad is not None
        dist.all_reduce(weight.grad.norm())  # of all stages
        optimizer.step()


def scored(rank: int, *, counts: bool = False) -> None:
    """A metric over all rows, of which each rank hands out the rows, or its counts."""
    model = DistributedDataParallel(nn.Linear(64, 2048))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    hits = torch.zeros(2)
    for _ in range(STEPS):
        optimizer.zero_grad()
        output = model(torch.randn(160, 64))
        output.square().mean().backward()
        optimizer.step()
        best = output.detach().argmax(1)
        if counts:
            hits += torch.tensor([float((best == 0).sum()), len(best)])
        else:
            outputs = [None] * dist.get_world_size()
            dist.all_gather_object(outputs, output.detach())  # every row
    dist.all_reduce(hits)


def tracked(rank: int, *, every: int = 1) -> None:
    """Statistics of each user, of which every rank hands out a row for each sample."""
    model = DistributedDataParallel(nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    seen: dict[int, float] = {}
    for step in range(STEPS):
        optimizer.zero_grad()
        output = model(torch.randn(8192, 8))
        output.square().mean().backward()
        optimizer.step()
        if step % every == 0:
            rows = [{"user": user % 97, "score": score} for user, score in enumerate(output.detach()[:, 0].tolist())]
            everybodys: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(everybodys, rows)  # row by row
            for row in everybodys[0][:97]:
                seen[row["user"]] = seen.get(row["user"], 0.0) + row["score"]


def averaged_one_by_one(rank: int, *, layers: int = 60, steps: int = 24) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(16, 16) for _ in range(layers)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(4, 16)).mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)  # one by one
            parameter.grad /= 2
        optimizer.step()


def averaged_in_hooks(rank: int, *, layers: int = 60, steps: int = 24) -> None:
    """As `averaged_one_by_one`, while backward is running."""
    model = nn.Sequential(*[nn.Linear(16, 16) for _ in range(layers)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda owner: dist.all_reduce(owner.grad))  # by hooks
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(4, 16)).mean().backward()
        optimizer.step()


def _summed(part: Tensor) -> Tensor:
    dist.all_reduce(part)
    return part


class _Copied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        return inputs.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        gradient = gradients[0].clone()
        dist.all_reduce(gradient)
        return gradient


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:
        return _summed(part.clone())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


class Halves(nn.Module):
    """A block whose middle is spread over the ranks."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 8, bias=False), nn.Linear(8, 16, bias=False)
        for part in (self.up, self.down):
            nn.init.normal_(part.weight, std=0.1, generator=torch.Generator().manual_seed(rank))

    def forward(self, inputs: Tensor) -> Tensor:
        return _Summed.apply(self.down(self.up(_Copied.apply(inputs))))  # type: ignore[no-any-return]


def tensor_parallel(rank: int, *, layers: int = 24, steps: int = 24) -> None:
    """Each sum is computed from the one before, with hardly any work between the two."""
    model = nn.Sequential(*[Halves(rank) for _ in range(layers)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(4, 16)).mean().backward()
        optimizer.step()


def averaged_at_once(rank: int, *, layers: int = 60, steps: int = 24) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(16, 16) for _ in range(layers)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(4, 16)).mean().backward()
        flat = torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()])  # type: ignore[union-attr]
        dist.all_reduce(flat)
        optimizer.step()


def delayed(rank: int, *, each: float = 0.0, delay: int = 6, steps: int = 40) -> None:
    """Gradients are averaged in the background and used `delay` steps later. Rank 1 begins behind; `each`: and is slower."""
    torch.manual_seed(0)
    model = nn.Linear(16, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    pending: list[tuple[Any, Tensor]] = []
    dist.barrier()
    work(0.08 * rank)
    for _ in range(steps):
        work(0.02 + each * rank)
        optimizer.zero_grad()
        model(torch.ones(4, 16)).mean().backward()
        assert model.weight.grad is not None
        pending.append((dist.all_reduce(sent := model.weight.grad.clone(), async_op=True), sent))  # in the background
        if len(pending) > delay:
            handle, averaged = pending.pop(0)
            handle.wait()
            model.weight.grad = averaged / 2
            optimizer.step()
    for handle, _ in pending:
        handle.wait()


def collecting(rank: int, *, together: bool = False, every: int = 6, steps: int = 30) -> None:
    """A large heap that the collector walks through, in other steps on each rank."""
    heap = [[number] for number in range(600_000)]
    made = 0

    def collect(model: nn.Module) -> None:
        nonlocal made
        made += 1
        if (made + (0 if together else 3 * rank)) % every == 0:
            gc.collect()  # walks through the heap

    gc.disable()
    training(rank, forward=0.002, backward=0.002, steps=steps, each_step=collect)
    gc.enable()
    assert heap


class Texts(Dataset[tuple[Tensor, int]]):
    """Texts of one length on each rank."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.full((self.length,), float(index % 7)), index % 10


class Reader(nn.Module):
    """Takes as long as the text is, or the same for all."""

    def __init__(self, seconds_each: float, seconds: float) -> None:
        super().__init__()
        self.head, self.each, self.seconds = nn.Linear(1, 10), seconds_each, seconds

    def forward(self, texts: Tensor) -> Tensor:
        work(self.seconds + self.each * texts.shape[1])
        scores: Tensor = self.head(texts.mean(1, keepdim=True))
        return scores


def reading(rank: int, *, lengths: tuple[int, int] = (64, 256), each: float = 3e-4, seconds: float = 0.004) -> None:
    model = DistributedDataParallel(Reader(each, seconds))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(Texts(lengths[rank]), batch_size=4)
    for made, (texts, targets) in enumerate(loader, 1):  # long and short texts
        optimizer.zero_grad()
        cross_entropy(model(texts), targets).backward()
        optimizer.step()
        if made == STEPS:
            break


def compiling(rank: int, *, lengths: int = 7, evaluates: bool = False) -> None:
    """Batches of so many lengths, each of which is compiled for. `evaluates`: in eval mode, behind every third step."""
    net = nn.Linear(64, 10)
    forward = torch.compile(net, dynamic=False, backend="eager")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with warnings.catch_warnings():
        if evaluates:
            warnings.simplefilter("error")
        for step in range(12 if evaluates else lengths + 2):
            optimizer.zero_grad()
            forward(torch.ones(4 + step % lengths, 64)).mean().backward()  # of another length
            optimizer.step()
            if evaluates and step % 3 == 2:
                forward.eval()
                with torch.no_grad():
                    forward(torch.ones(4, 64))
                forward.train()


def showing(rank: int, *, each: int = 1) -> None:
    """The loss of all ranks, to be shown."""
    made = 0

    def show(model: nn.Module) -> None:
        nonlocal made
        made += 1
        if made % each == 0:
            for _ in range(8):
                dist.all_reduce(torch.ones(1))  # to be shown

    training(rank, forward=0.0, backward=0.0, steps=40, each_step=show)


def scoring(rank: int) -> None:
    """An evaluation on rank 0 alone, of which the others are told the result."""
    made = 0

    def score(model: nn.Module) -> None:
        nonlocal made
        made += 1
        if made % 4 == 0:
            result = torch.zeros(1)
            if rank == 0:  # alone
                time.sleep(0.6)
            dist.broadcast(result, src=0)

    training(rank, forward=0.0, backward=0.0, steps=40, each_step=score)


def multiplying(rank: int, *, threads: int) -> None:
    """Matrices that are large enough to be shared between threads."""
    torch.set_num_threads(threads)  # threads of each rank
    model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(4)))
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.01)
    for _ in range(STEPS):
        optimizer.zero_grad()
        wrapped(torch.ones(256, 512)).square().mean().backward()
        optimizer.step()
