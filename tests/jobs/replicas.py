"""Small trainings in which the stream of gradients is watched: ill ones, and the healthy ones that look most like them."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import vector_to_parameters

from distdoctor.recording.recording import Job, Recording
from distdoctor.recording.trace.layout import STREAMS
from distdoctor.recording.trace.probe_settings import ProbeSettings
from distdoctor.recording.trace.run_folder import read_run
from jobs import run_ranks, values

STEPS = 6


def watched(
    target: Callable[..., Any],
    *,
    ranks: int = 2,
    timeout: float = 90,
    deep: bool = True,
    streams: str = "",
    **about: Any,
) -> tuple[Recording, list[Any]]:
    """The recording of a job, every step looked at when `deep`, and what each rank returned."""
    with tempfile.TemporaryDirectory() as folder:
        returned = values(run_ranks(_watched, ranks, target, folder, deep, streams, about, timeout=timeout, join=False))
        recording = read_run(Path(folder))
        assert not recording.troubles, recording.troubles
        files = {__file__, target.__code__.co_filename}
        sources = {file: Path(file).read_text("utf-8") for file in files}
        return Recording(Job(world_size=ranks), recording.ranks, sources=sources), returned


def _watched(
    rank: int, world_size: int, target: Callable[..., Any], folder: str, deep: bool, streams: str, about: dict[str, Any]
) -> Any:
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    from distdoctor.probe.start import start

    wanted = frozenset(streams.split(",")) if streams else STREAMS
    start(folder, ProbeSettings(wanted, frozenset({"gradients"} if deep else ())))
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world_size)
    torch.manual_seed(0)
    returned = target(rank, world_size, **about)
    dist.destroy_process_group()
    return returned


def line(words: str, file: str = __file__) -> int:
    """The number of the one line of a file that holds these words."""
    lines = Path(file).read_text("utf-8").splitlines()
    (found,) = [number for number, text in enumerate(lines, 1) if words in text and "line(" not in text]
    return found


def digest_of_training(model: nn.Module) -> str:
    """All bits of what was trained."""
    import hashlib

    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        inner = getattr(tensor, "_local_tensor", tensor)
        digest.update(inner.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


class Net(nn.Module):
    """Three layers, one of them with running statistics when asked for."""

    def __init__(self, *, norm: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.body = nn.Linear(20, 32)
        self.norm = nn.BatchNorm1d(32) if norm else nn.Identity()
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(32, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        scores: Tensor = self.head(self.drop(self.norm(self.body(inputs)).relu()))
        return scores


class Batches:
    """What this rank reads: other samples than the others, the same in every run."""

    def __init__(self, rank: int, *, size: int = 8) -> None:
        self.generator = torch.Generator().manual_seed(100 + rank)
        self.size = size

    def next(self) -> tuple[Tensor, Tensor]:
        inputs = torch.randn(self.size, 20, generator=self.generator)
        return inputs, torch.randint(0, 10, (self.size,), generator=self.generator)


def adam(model: nn.Module, **more: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2, **more)


def train(
    model: nn.Module,
    rank: int,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    steps: int = STEPS,
    before_step: Callable[[int], object] = lambda step: None,
    after_step: Callable[[int], object] = lambda step: None,
) -> str:
    """An ordinary loop."""
    optimizer, batches = optimizer or adam(model), Batches(rank)
    for step in range(1, steps + 1):
        inputs, targets = batches.next()
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        before_step(step)
        optimizer.step()
        after_step(step)
    return digest_of_training(model)


# --- ill ------------------------------------------------------------------------------------------------------------------


def different_seeds(rank: int, world_size: int) -> str:
    torch.manual_seed(rank)
    model = Net()

    def average(step: int) -> None:
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)
            parameter.grad /= world_size

    return train(model, rank, before_step=average)


def two_models_in_turns(rank: int, world_size: int, *, wrapped: bool = False) -> None:
    """A critic that is called through its wrapper, and a generator that is not: each has an optimizer of its own."""
    critic, generator = DistributedDataParallel(nn.Linear(32, 1)), DistributedDataParallel(nn.Linear(20, 32))
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.01) for one in (critic, generator)]
    batches = Batches(rank)
    for _ in range(STEPS):
        inputs, _ = batches.next()
        with torch.no_grad():
            drawn = generator(inputs)
        loss = critic(drawn).square().mean()
        optimizers[0].zero_grad()
        loss.backward()
        optimizers[0].step()
        fake = generator(inputs) if wrapped else generator.module(inputs)
        loss = critic.module(fake).mean()  # whose own gradients nobody uses
        optimizers[1].zero_grad()
        loss.backward()
        optimizers[1].step()


def forward_through_module(rank: int, world_size: int, *, since: int = 1) -> None:
    model, batches = DistributedDataParallel(Net()), Batches(rank)
    optimizer = adam(model)
    for step in range(1, STEPS + 1):
        inputs, targets = batches.next()
        optimizer.zero_grad()
        scores = model(inputs) if step < since else model.module(inputs)  # past the wrapper
        cross_entropy(scores, targets).backward()
        optimizer.step()


def handed_round(value: Tensor, rank: int, world_size: int) -> Tensor:
    """What the rank before holds."""
    received = torch.empty_like(value)
    messages = [
        dist.P2POp(dist.isend, value, (rank + 1) % world_size),
        dist.P2POp(dist.irecv, received, (rank - 1) % world_size),
    ]
    for work in dist.batch_isend_irecv(messages):
        work.wait()
    return received


def never_wrapped(rank: int, world_size: int, *, hands_on: str = "", shows: bool = True) -> None:
    """`hands_on`: in a ring, `keys` of what it reads, or `weights`, which are averaged with the neighbour's. `shows`: the mean of
    all losses."""
    model, batches = Net(), Batches(rank)
    optimizer = adam(model)
    for _ in range(STEPS):
        inputs, targets = batches.next()
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()  # nobody averages
        if hands_on == "keys":
            handed_round(torch.randn(64, 64), rank, world_size)
        for parameter in model.parameters() if hands_on == "weights" else ():
            parameter.data.lerp_(handed_round(parameter.detach().clone(), rank, world_size), 0.5)
        shown = loss.detach().clone()
        if shows:
            dist.all_reduce(shown)


def misaligned_no_sync(rank: int, world_size: int) -> None:
    model, batches = DistributedDataParallel(Net()), Batches(rank)
    optimizer = adam(model)
    for i in range(2 * STEPS):
        inputs, targets = batches.next()
        with nullcontext() if i % 2 == 0 else model.no_sync():
            (cross_entropy(model(inputs), targets) / 2).backward()
        if (i + 1) % 2 == 0:
            optimizer.step()  # after the micro-step that stayed local
            optimizer.zero_grad()


def everything_in_no_sync(rank: int, world_size: int) -> None:
    model, batches = DistributedDataParallel(Net()), Batches(rank)
    optimizer = adam(model)
    for _ in range(STEPS):
        for _ in range(2):
            inputs, targets = batches.next()
            with model.no_sync():
                (cross_entropy(model(inputs), targets) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()


def forward_inside_backward_outside(rank: int, world_size: int) -> None:
    model, batches = DistributedDataParallel(Net()), Batches(rank)
    optimizer = adam(model)
    for _ in range(STEPS):
        inputs, targets = batches.next()
        with model.no_sync():
            loss = cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def edited_weight(rank: int, world_size: int, *, who: int = 0, at: int = 3) -> None:
    model = DistributedDataParallel(Net())

    def edit(step: int) -> None:
        if rank == who and step == at:
            with torch.no_grad():
                model.module.head.weight.mul_(1.01)

    train(model, rank, after_step=edit)


def edited_in_stages(rank: int, world_size: int, *, who: int = 1, at: int = STEPS) -> None:
    """Each stage has an optimizer of its own; the edit comes after step `at` of the first one."""
    model = DistributedDataParallel(Net())

    def edit(step: int) -> None:
        if rank == who and step == at:
            with torch.no_grad():
                model.module.head.weight.mul_(1.01)

    train(model, rank, after_step=edit)
    train(model, rank)


def reloaded_on_one_rank(rank: int, world_size: int) -> None:
    model = DistributedDataParallel(Net())
    saved: dict[str, Any] = {}

    def reload(step: int) -> None:
        if step == 1:
            saved.update({key: value.clone() for key, value in model.module.state_dict().items()})
        if step == 4 and rank == 1:
            model.module.load_state_dict(saved)

    train(model, rank, after_step=reload)


def flip(tensor: Tensor, element: int, bit: int) -> None:
    """Turn over one bit of one float32."""
    with torch.no_grad():
        words = tensor.detach().view(-1).view(torch.int32)
        words[element] ^= torch.tensor(1 << bit if bit < 31 else -(1 << 31), dtype=torch.int32)


def flipped_bit(
    rank: int, world_size: int, *, who: int = 1, at: int = 3, bit: int = 20, element: int = 77, where: str = "weight"
) -> None:
    model = DistributedDataParallel(Net())

    def in_gradient(step: int) -> None:
        if rank == who and step == at and where == "grad":
            flip(model.module.body.weight.grad, element, bit)

    def in_weight(step: int) -> None:
        if rank == who and step == at and where == "weight":
            flip(model.module.body.weight, element, bit)

    train(model, rank, before_step=in_gradient, after_step=in_weight)


def unfrozen_after_wrapping(rank: int, world_size: int) -> None:
    inside = Net()
    inside.body.requires_grad_(False)
    model = DistributedDataParallel(inside)
    inside.body.requires_grad_(True)
    train(model, rank, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2))


def unfrozen_after_some_steps(rank: int, world_size: int, *, wraps_again: bool = False) -> str:
    """The body is frozen at first, and held by the optimizer all the time."""
    inside = Net()
    inside.body.requires_grad_(False)
    model = DistributedDataParallel(inside)
    optimizer, batches = torch.optim.AdamW(inside.parameters(), lr=1e-2), Batches(rank)
    for step in range(8):
        if step == 3:
            inside.body.requires_grad_(True)  # from now on
            model = DistributedDataParallel(inside) if wraps_again else model
        inputs, targets = batches.next()
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    return digest_of_training(model)


def layer_replaced_after_wrapping(rank: int, world_size: int) -> None:
    model = DistributedDataParallel(Net(), find_unused_parameters=True)
    torch.manual_seed(1)
    model.module.head = nn.Linear(32, 10)  # after wrapping
    train(model, rank)


def converted_after_wrapping(rank: int, world_size: int) -> None:
    model = DistributedDataParallel(Net())
    model.double()
    model.float()  # there and back
    train(model, rank)


def learning_rate_by_rank(rank: int, world_size: int) -> None:
    model = DistributedDataParallel(Net())
    optimizer = adam(model)

    def adapt(step: int) -> None:
        if step == 3:
            optimizer.param_groups[0]["lr"] *= 0.5 if rank == 1 else 1.0

    train(model, rank, optimizer=optimizer, after_step=adapt)


def noisy_gradients(rank: int, world_size: int) -> None:
    model = DistributedDataParallel(Net())
    generator = torch.Generator().manual_seed(rank)

    def disturb(step: int) -> None:
        if step >= 2:
            model.module.head.bias.grad += 1e-3 * torch.randn(10, generator=generator)

    train(model, rank, before_step=disturb)


def edited_state(rank: int, world_size: int) -> None:
    model = DistributedDataParallel(Net())
    optimizer = adam(model)

    def forget(step: int) -> None:
        if step == 3 and rank == 1:
            optimizer.state[model.module.head.weight]["exp_avg_sq"].mul_(2)

    train(model, rank, optimizer=optimizer, after_step=forget)


def undivided(rank: int, world_size: int, *, divisor: float = 1.0) -> None:
    model, batches = DistributedDataParallel(Net()), Batches(rank)
    optimizer = adam(model)
    for i in range(4 * STEPS):
        inputs, targets = batches.next()
        last = (i + 1) % 4 == 0
        with nullcontext() if last else model.no_sync():
            loss = cross_entropy(model(inputs), targets)
            if divisor != 1:
                loss = loss / divisor  # once more
            loss.backward()  # of each micro-step
        if last:
            optimizer.step()
            optimizer.zero_grad()


def summed_by_hand(rank: int, world_size: int) -> None:
    model = Net()

    def add(step: int) -> None:
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)  # and nobody divides

    train(model, rank, before_step=add)


def summed_in_buckets(rank: int, world_size: int, *, divides: bool = False) -> str:
    """Each bucket is flattened and reduced by itself, as reducers do that are written by hand."""
    model = Net()

    def add(step: int) -> None:
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        for bucket in (grads[:2], grads[2:]):
            flat = torch.cat([grad.reshape(-1) for grad in bucket])
            dist.all_reduce(flat)  # the result of the division is dropped
            whole = flat.div(world_size)
            parts = (whole if divides else flat).split([grad.numel() for grad in bucket])
            for grad, part in zip(bucket, parts, strict=True):
                grad.copy_(part.view_as(grad))

    return train(model, rank, before_step=add)


def averaged_in_one_pass(rank: int, world_size: int, *, which: int = 0) -> str:
    """Of the three backward passes of each step, one is followed by the reduction: the first, where somebody counts wrongly."""
    model, batches = Net(), Batches(rank)
    optimizer = adam(model)

    def average() -> None:
        flat = torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None])
        dist.all_reduce(flat)
        vector_to_parameters(flat / world_size, [p.grad for p in model.parameters() if p.grad is not None])

    for turn in range(3 * STEPS):
        inputs, targets = batches.next()
        (cross_entropy(model(inputs), targets) / 3).backward()
        if turn % 3 == which:  # the pass that is reduced
            average()
        if turn % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()
    return digest_of_training(model)


def averaged_twice(rank: int, world_size: int) -> None:
    model = DistributedDataParallel(Net())

    def divide(step: int) -> None:
        for parameter in model.parameters():
            parameter.grad /= world_size

    train(model, rank, before_step=divide)


def never_zeroed(rank: int, world_size: int) -> None:
    model, batches = DistributedDataParallel(Net()), Batches(rank)
    optimizer = adam(model)
    for _ in range(STEPS):
        inputs, targets = batches.next()
        cross_entropy(model(inputs), targets).backward()  # onto the old ones
        optimizer.step()


def never_zeroed_alone(rank: int, world_size: int, fading: bool = False) -> None:
    model, batches = Net(), Batches(rank)
    optimizer = adam(model)
    for _ in range(STEPS):
        inputs, targets = batches.next()
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        for parameter in model.parameters() if fading else ():
            parameter.grad.mul_(0.9)


def never_zeroed_shards(rank: int, world_size: int) -> None:
    """Tensor parallel: no parameter lies whole on a rank."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 4, bias=False))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    parallelize_module(model, init_device_mesh("cpu", (world_size,)), plan)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(STEPS):
        torch.manual_seed(step)
        model(torch.randn(8, 20)).square().mean().backward()
        optimizer.step()


class Counting(Net):
    """Keeps a moving average of what it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(20))

    def forward(self, inputs: Tensor) -> Tensor:
        self.seen = 0.9 * self.seen + 0.1 * inputs.mean(0)
        return super().forward(inputs)


def own_buffers(rank: int, world_size: int, *, broadcast: bool = False, merged: bool = False) -> str:
    """`merged`: every second step their mean is what all go on with; when the optimizer steps they differ again."""
    counting = Counting()

    def merge(step: int) -> None:
        if merged and step % 2 == 0:
            total = counting.seen.clone()
            dist.all_reduce(total)
            counting.seen.copy_(total / world_size)

    return train(DistributedDataParallel(counting, broadcast_buffers=broadcast), rank, after_step=merge)


class Breaking(nn.Module):
    """Fine until it is told to break."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.where = ""

    def forward(self, inputs: Tensor) -> Tensor:
        if self.where == "forward":
            return (inputs - inputs).log() * 0 * self.scale
        if self.where == "backward":
            return inputs * self.scale + (inputs * 0).abs().sqrt()  # the slope of sqrt at 0 is infinite, times 0
        return inputs * self.scale


class Layers(nn.Sequential):
    """Divides by zero between two layers when it is told to."""

    def forward(self, inputs: Tensor) -> Tensor:
        kept = self[1](self[0](inputs))
        return self[2](kept / (kept - kept) if self[1].where == "between" else kept)


def diverging(rank: int, world_size: int, *, steps: int = 60) -> str:
    """A learning rate at which every step overshoots by more than the one before."""
    model = DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=8.0)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(steps):
        inputs = torch.randn(16, 8, generator=generator)
        optimizer.zero_grad()
        (model(inputs) - inputs.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
    return digest_of_training(model)


def first_nan(
    rank: int,
    world_size: int,
    *,
    where: str = "forward",
    who: int = 1,
    at: int = 3,
    wrapped: bool = True,
    skips: bool = False,
    steps: int = STEPS,
) -> None:
    """`skips`: a step whose gradients are not finite is left out, on all ranks, as they see the same averages."""
    inside = Layers(nn.Linear(20, 32), Breaking(), nn.Linear(32, 10))
    model: nn.Module = DistributedDataParallel(inside) if wrapped else inside
    batches, optimizer = Batches(rank), adam(model)
    for step in range(1, steps + 1):
        inputs, targets = batches.next()
        here = rank == who and step == at
        if here and where == "input":
            inputs[2, 3] = float("nan")
        inside[1].where = where if here else ""  # type: ignore[assignment]
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        if not skips or torch.isfinite(nn.utils.clip_grad_norm_(model.parameters(), 1e6)):
            optimizer.step()


def clipped_while_scaled(rank: int, world_size: int) -> None:
    model, batches = DistributedDataParallel(Net()), Batches(rank)
    optimizer, scaler = adam(model), torch.amp.GradScaler("cpu", init_scale=1024.0)
    for _ in range(STEPS):
        inputs, targets = batches.next()
        optimizer.zero_grad()
        scaler.scale(cross_entropy(model(inputs), targets)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # still scaled
        scaler.step(optimizer)
        scaler.update()


def scaler_by_rank(rank: int, world_size: int) -> None:
    """Unscaled, and so checked for overflows, before the ranks average: one of them skips alone."""
    model, batches = Net(), Batches(rank)
    optimizer, scaler = adam(model), torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(1, STEPS + 1):
        inputs, targets = batches.next()
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs), targets)
        if step == 3 and rank == 1:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        for parameter in model.parameters():
            parameter.grad.nan_to_num_(0.0, 0.0, 0.0)
            dist.all_reduce(parameter.grad)
            parameter.grad /= world_size
        scaler.step(optimizer)
        scaler.update()


class Piece:
    """The part of a flat copy of the parameters that this rank steps. Gradients of all are reduced together."""

    def __init__(self, model: nn.Module, rank: int, world_size: int) -> None:
        self.parameters = list(model.parameters())
        numel = sum(p.numel() for p in self.parameters)
        self.flat = torch.zeros(-(-numel // world_size) * world_size)
        self.flat[:numel] = torch.cat([p.detach().flatten() for p in self.parameters])
        size = len(self.flat) // world_size
        self.mine = nn.Parameter(self.flat[rank * size : (rank + 1) * size].clone())

    def reduce_gradients(self) -> None:
        grads = torch.zeros_like(self.flat)
        grads[: sum(p.numel() for p in self.parameters)] = torch.cat([p.grad.flatten() for p in self.parameters])
        self.mine.grad = torch.zeros_like(self.mine)
        dist.reduce_scatter_tensor(self.mine.grad, grads)
        self.mine.grad /= dist.get_world_size()

    @torch.no_grad()
    def publish(self) -> None:
        dist.all_gather_into_tensor(self.flat, self.mine.detach())
        at = 0
        for parameter in self.parameters:
            parameter.copy_(self.flat[at : at + parameter.numel()].view_as(parameter))
            at += parameter.numel()
            parameter.grad = None


def scaler_by_piece(rank: int, world_size: int, *, agreed: bool = False) -> None:
    """An infinity in what is rank 1's to step: unless all ranks have `agreed` on it, rank 1 alone skips and lowers its scale."""
    torch.manual_seed(0)
    model, batches = Net(), Batches(rank)
    piece = Piece(model, rank, world_size)
    optimizer, scaler = torch.optim.SGD([piece.mine], lr=0.01), torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(1, 13):
        inputs, targets = batches.next()
        scaler.scale(cross_entropy(model(inputs), targets)).backward()
        piece.reduce_gradients()
        if step == 6 and rank == 1:
            piece.mine.grad[0] = torch.inf
        if agreed:
            bad = torch.tensor(float(not torch.isfinite(piece.mine.grad).all()))
            dist.all_reduce(bad, op=dist.ReduceOp.MAX)
            piece.mine.grad += torch.inf if bad else 0.0
        scaler.unscale_(optimizer)  # by its own piece
        scaler.step(optimizer)
        scaler.update()
        piece.publish()


def overflow_by_rank(rank: int, world_size: int, *, agreed: bool = False) -> str:
    """A loss scale of one's own: a rank whose gradients overflow reduces zeros, halves its scale and leaves the step out, unless
    all ranks have `agreed` on that. Each of them overflows twice."""
    model, batches, scale = Net(), Batches(rank), 1024.0
    optimizer = adam(model)
    for step in range(1, 13):
        inputs, targets = batches.next()
        optimizer.zero_grad()
        (cross_entropy(model(inputs), targets) * (1e9 if step % 5 == 2 + rank else scale)).backward()
        for parameter in model.parameters():
            parameter.grad = parameter.grad.half().float()
        overflow = torch.tensor([float(not all(p.grad.isfinite().all() for p in model.parameters()))])
        if agreed:
            dist.all_reduce(overflow, op=dist.ReduceOp.MAX)
        for parameter in model.parameters():
            parameter.grad = (parameter.grad / scale).nan_to_num(0.0, 0.0, 0.0)
            dist.all_reduce(parameter.grad)
            parameter.grad /= world_size
        if overflow:
            scale /= 2
        else:
            optimizer.step()  # unless this rank overflows
    return digest_of_training(model)


def overflow_by_shard(rank: int, world_size: int, *, decides: str = "each") -> str:
    """A sharded optimizer by hand. A rank in whose shard gradients overflow leaves its step out, unless `all` decide together, or
    the `first` rank steps alone."""
    model, batches = Net(), Batches(rank)
    held = list(model.parameters())
    size = -(-sum(p.numel() for p in held) // world_size)
    padding = size * world_size - sum(p.numel() for p in held)

    def flat(tensors: list[torch.Tensor]) -> torch.Tensor:
        return torch.cat([*(one.reshape(-1) for one in tensors), torch.zeros(padding)])

    mine = slice(rank * size, (rank + 1) * size)
    master = torch.nn.Parameter(flat([p.detach() for p in held])[mine].clone())
    optimizer = torch.optim.Adam([master], lr=1e-3)
    for step in range(30):
        inputs, targets = batches.next()
        for parameter in held:
            parameter.grad = None
        cross_entropy(model(inputs), targets).backward()
        gradients = flat([p.grad for p in held])  # type: ignore[misc]
        if step % 3 == 1:
            gradients[-padding - 2] = float("inf")
        dist.all_reduce(gradients)
        own = gradients[mine] / world_size
        master.grad = own.nan_to_num(0.0, 0.0, 0.0)
        if decides == "first":
            if rank == 0:
                optimizer.step()
        elif decides == "all":
            found = torch.tensor(float(not own.isfinite().all()))
            dist.all_reduce(found, op=dist.ReduceOp.MAX)
            if not found:
                optimizer.step()
        else:
            overflow = not bool(own.isfinite().all())  # of this shard
            if not overflow:
                optimizer.step()
        parts = [torch.empty(size) for _ in range(world_size)]
        dist.all_gather(parts, master.detach())
        whole, at = torch.cat(parts), 0
        with torch.no_grad():
            for parameter in held:
                parameter.copy_(whole[at : at + parameter.numel()].view_as(parameter))
                at += parameter.numel()
    return digest_of_training(model)


# --- healthy --------------------------------------------------------------------------------------------------------------


def plain(rank: int, world_size: int, *, norm: bool = False, dropout: float = 0.0, **options: Any) -> str:
    if dropout:
        torch.manual_seed(0)
    model = DistributedDataParallel(Net(norm=norm, dropout=dropout), **options)
    torch.manual_seed(1 + rank)
    return train(model, rank)


def averaged_by_hand(rank: int, world_size: int) -> str:
    model = Net()

    def average(step: int) -> None:
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= world_size

    return train(model, rank, before_step=average)


class Routed(nn.Module):
    """Rows of all ranks go through the layer of each rank by turns."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.expert, self.head = nn.Linear(20, 32), nn.Linear(32, 32), nn.Linear(32, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        from torch.distributed.nn.functional import all_to_all_single

        rows = self.body(inputs).relu()
        sent = all_to_all_single(torch.empty_like(rows), rows)
        scores: Tensor = self.head(all_to_all_single(torch.empty_like(rows), self.expert(sent).relu()))
        return scores


def experts_averaged(
    rank: int, world_size: int, *, alone: bool = False, whole: bool = False, heads: bool = False
) -> str:
    """Each rank owns an expert, whose gradients are averaged with those of the other's, or (`alone`) divided by the number of
    ranks, or (and `whole`) not even that, with an optimizer that minds; or (and `heads`) beside a bias of each rank's own."""
    torch.manual_seed(rank)
    model = Routed()
    for name, parameter in model.named_parameters():
        if not name.startswith("expert"):
            dist.broadcast(parameter.data, 0)

    def average(step: int) -> None:
        for name, parameter in model.named_parameters():
            if heads and name == "head.bias":
                continue
            if not alone or not name.startswith("expert"):
                dist.all_reduce(parameter.grad)  # of experts, too
            if not whole or not name.startswith("expert"):
                parameter.grad /= world_size

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1) if whole else None
    return train(model, rank, before_step=average, optimizer=optimizer)


def experts_with_replicas(
    rank: int, world_size: int, *, by_all: bool = False, one_batch: bool = False, within: bool = False
) -> str:
    """Ranks 0 and 1 deal the experts out between them, and so do 2 and 3. Their gradients are averaged over the replicas, and
    divided by the number of all ranks only where that is asked for (`by_all`). `one_batch`: what trades rows has one loss.
    `within`: rows stay among the replicas, which serve a task of their own."""
    from torch.distributed.nn.functional import all_to_all_single

    pair, replicas = [2 * (rank // 2), 2 * (rank // 2) + 1], [rank % 2, rank % 2 + 2]
    groups = {ranks: dist.new_group(list(ranks)) for ranks in ((0, 1), (2, 3), (0, 2), (1, 3))}
    sharing = groups[tuple(replicas)]
    trading = sharing if within else groups[tuple(pair)]
    torch.manual_seed(rank % 2)
    body, expert, head = nn.Linear(20, 32), nn.Linear(32, 32), nn.Linear(32, 10)
    model = nn.ModuleDict({"body": body, "expert": expert, "head": head})
    for layer in (body, head):
        for parameter in layer.parameters():
            dist.broadcast(parameter.data, 0)
    batches, optimizer = Batches(rank // 2 if one_batch else rank), torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(3 * STEPS):
        inputs, targets = batches.next()
        rows = body(inputs).relu()
        sent = all_to_all_single(torch.empty_like(rows), rows, group=trading)
        back = all_to_all_single(torch.empty_like(rows), expert(sent).relu(), group=trading)
        optimizer.zero_grad()
        cross_entropy(head(back), targets).backward()
        for name, parameter in model.named_parameters():
            mine = name.startswith("expert")
            dist.all_reduce(parameter.grad, group=sharing if mine else None)
            parameter.grad /= 2 if mine and not by_all else world_size
        optimizer.step()
    return digest_of_training(model)


def one_critic_and_actors_apart(rank: int, world_size: int) -> str:
    """The ranks average the critic's gradients, flattened; every rank's actor is its own, on purpose."""
    critic, batches = Net(), Batches(rank)
    torch.manual_seed(rank)
    actor = nn.Linear(20, 10)
    optimizers = adam(critic), adam(actor)
    for _ in range(STEPS):
        inputs, targets = batches.next()
        (cross_entropy(critic(inputs), targets) + cross_entropy(actor(inputs), targets)).backward()
        grads = [parameter.grad for parameter in critic.parameters() if parameter.grad is not None]
        flat = torch.cat([grad.reshape(-1) for grad in grads])
        dist.all_reduce(flat)
        for grad, part in zip(grads, (flat / world_size).split([grad.numel() for grad in grads]), strict=True):
            grad.copy_(part.view_as(grad))
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return digest_of_training(critic)


def accumulated(rank: int, world_size: int, *, k: int = 3) -> str:
    model, batches = DistributedDataParallel(Net()), Batches(rank)
    optimizer = adam(model)
    for i in range(k * STEPS):
        inputs, targets = batches.next()
        last = (i + 1) % k == 0
        with nullcontext() if last else model.no_sync():
            (cross_entropy(model(inputs), targets) / k).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
    return digest_of_training(model)


def uneven_under_join(rank: int, world_size: int) -> str:
    from torch.distributed.algorithms.join import Join

    model, batches = DistributedDataParallel(Net()), Batches(rank)
    optimizer = adam(model)
    with Join([model]):
        for _ in range(STEPS - rank):
            inputs, targets = batches.next()
            optimizer.zero_grad()
            cross_entropy(model(inputs), targets).backward()
            optimizer.step()
    return digest_of_training(model)


def joined_epochs(rank: int, world_size: int, *, remembers: bool = True, shadowed: bool = False) -> str:
    """Epochs with uneven inputs under Join, whose optimizer `remembers` its steps, or is joined (`shadowed`) as the model is."""
    from torch.distributed.algorithms.join import Join
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model, batches = DistributedDataParallel(Net()), Batches(rank)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9 if remembers else 0.0)
    if shadowed:
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    for _ in range(3):
        with Join([model, optimizer] if shadowed else [model]):
            for _ in range(STEPS - 2 * rank):
                inputs, targets = batches.next()
                optimizer.zero_grad()
                cross_entropy(model(inputs), targets).backward()
                optimizer.step()
    return digest_of_training(model)


def adversaries(rank: int, world_size: int) -> str:
    """Two models and two optimizers; the generator's loss goes through the discriminator."""
    generator, judge = DistributedDataParallel(nn.Linear(4, 20)), DistributedDataParallel(nn.Linear(20, 1))
    of_generator, of_judge = adam(generator), adam(judge)
    noise = torch.Generator().manual_seed(rank)
    for _ in range(STEPS):
        fake = generator(torch.randn(8, 4, generator=noise))
        real = torch.randn(8, 20, generator=noise)
        of_judge.zero_grad()
        judge(real).relu().mean().backward()
        (-judge(fake.detach())).relu().mean().backward()
        of_judge.step()
        of_generator.zero_grad()
        judge.requires_grad_(False)
        judge.module(fake).mean().backward()
        judge.requires_grad_(True)
        of_generator.step()
    return digest_of_training(generator) + digest_of_training(judge)


def averaged_copy(rank: int, world_size: int) -> str:
    from torch.optim.swa_utils import AveragedModel

    model = DistributedDataParallel(Net(norm=True))
    copy = AveragedModel(model.module, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    return train(model, rank, after_step=lambda step: copy.update_parameters(model.module))


def frozen_body(rank: int, world_size: int) -> str:
    inside = Net()
    inside.body.requires_grad_(False)
    return train(DistributedDataParallel(inside), rank)


def low_rank(rank: int, world_size: int) -> str:
    """Only a small addition to a frozen layer is trained."""
    inside = Net()
    inside.requires_grad_(False)
    inside.head = nn.Sequential(nn.Linear(32, 2, bias=False), nn.Linear(2, 10, bias=False))
    return train(DistributedDataParallel(inside), rank)


def unused_branch(rank: int, world_size: int) -> str:
    class Branching(Net):
        def __init__(self) -> None:
            super().__init__()
            self.other = nn.Linear(32, 10)
            self.never = nn.Linear(3, 3)
            self.turns = 0

        def forward(self, inputs: Tensor) -> Tensor:
            self.turns += 1
            hidden = self.body(inputs).relu()
            chosen = self.other if (self.turns + rank) % 2 else self.head
            scores: Tensor = chosen(hidden)
            return scores

    return train(DistributedDataParallel(Branching(), find_unused_parameters=True), rank)


def closures(rank: int, world_size: int) -> str:
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    batches = Batches(rank)
    for _ in range(3):
        inputs, targets = batches.next()

        def closure(inputs: Tensor = inputs, targets: Tensor = targets) -> Tensor:
            optimizer.zero_grad()
            loss = cross_entropy(model(inputs), targets)
            loss.backward()
            return loss

        optimizer.step(closure)
    return digest_of_training(model)


def split_optimizer(rank: int, world_size: int) -> str:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DistributedDataParallel(Net())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=1e-2)
    return train(model, rank, optimizer=optimizer)


def scaled(rank: int, world_size: int, *, overflow_at: int = 3) -> str:
    model, batches = DistributedDataParallel(Net()), Batches(rank)
    optimizer, scaler = adam(model), torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(1, STEPS + 1):
        inputs, targets = batches.next()
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = cross_entropy(model(inputs), targets)
        if step == overflow_at:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    return digest_of_training(model)


def sharded(rank: int, world_size: int, *, mixed: bool = True) -> str:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    model = Net()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16) if mixed else MixedPrecisionPolicy()
    fully_shard(model.body, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    return train(model, rank)


def replicated_and_sharded(rank: int, world_size: int) -> str:
    """Two by one: every rank holds everything, as fully_shard's hybrid mode does."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = Net()
    fully_shard(model, mesh=init_device_mesh("cpu", (world_size, 1), mesh_dim_names=("replicate", "shard")))
    return train(model, rank)


def tensor_parallel(rank: int, world_size: int) -> str:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = Net()
    mesh = init_device_mesh("cpu", (world_size,))
    parallelize_module(model, mesh, {"body": ColwiseParallel(), "head": RowwiseParallel()})
    groups = [[p for p in model.parameters() if hasattr(p, "device_mesh")]]
    return train(model, 0, optimizer=torch.optim.AdamW(groups[0], lr=1e-2, foreach=False))


def compiled(rank: int, world_size: int) -> str:
    model = DistributedDataParallel(Net())
    return train(torch.compile(model, backend="aot_eager"), rank)


def own_optimizers(rank: int, world_size: int, *, kind: str = "fused") -> str:
    model = DistributedDataParallel(Net())
    return train(model, rank, optimizer=adam(model, **{kind: True}))


def checkpointed(rank: int, world_size: int) -> str:
    from torch.utils.checkpoint import checkpoint

    class Frugal(Net):
        def forward(self, inputs: Tensor) -> Tensor:
            hidden = checkpoint(lambda x: self.norm(self.body(x)).relu(), inputs, use_reentrant=False)
            scores: Tensor = self.head(self.drop(hidden))
            return scores

    torch.manual_seed(0)
    return train(DistributedDataParallel(Frugal(dropout=0.1)), rank)


def two_models_apart(rank: int, world_size: int) -> str:
    """Every rank trains a model of its own, on purpose: nothing says that they should agree."""
    torch.manual_seed(rank)
    return train(Net(), rank)
