"""Small trainings that misuse optimizers, clipping, random numbers and collectives, and the healthy ones most like them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize
from torch.nn.parallel import DistributedDataParallel

from jobs.replicas import STEPS, Batches, Net, adam, digest_of_training, train

# --- optimizers ------------------------------------------------------------------------------------------------------------


def built_before_sharding(rank: int, world_size: int) -> str:
    from torch.distributed.fsdp import fully_shard

    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)  # too early
    fully_shard(model)
    return train(model, rank, optimizer=optimizer)


def built_after_sharding(rank: int, world_size: int) -> str:
    from torch.distributed.fsdp import fully_shard

    model = Net()
    fully_shard(model)
    return train(model, rank, optimizer=adam(model))


def built_before_the_head(rank: int, world_size: int) -> str:
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)  # without the new head
    torch.manual_seed(3)
    model.head = nn.Linear(32, 10)
    return train(DistributedDataParallel(model), rank, optimizer=optimizer)


def unfrozen_without_optimizer(rank: int, world_size: int) -> str:
    model = Net()
    model.body.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.head.parameters(), lr=1e-2)  # only of the head
    model.body.requires_grad_(True)
    return train(DistributedDataParallel(model), rank, optimizer=optimizer)


def unfrozen_and_added(rank: int, world_size: int) -> str:
    model = Net()
    model.body.requires_grad_(False)
    optimizer = adam(model)
    model.body.requires_grad_(True)
    optimizer.add_param_group({"params": list(model.body.parameters())})
    return train(DistributedDataParallel(model), rank, optimizer=optimizer)


def left_out(rank: int, world_size: int) -> str:
    """Somebody trains the head alone, and lets the gradients of the body be computed."""
    model = Net()
    return train(DistributedDataParallel(model), rank, optimizer=torch.optim.SGD(model.head.parameters(), lr=0.1))


def changed_by_hand(rank: int, world_size: int) -> str:
    model = Net()

    def descend(step: int) -> None:
        with torch.no_grad():
            for parameter in model.body.parameters():
                parameter -= 0.1 * parameter.grad
                parameter.grad = None

    wrapped = DistributedDataParallel(model)
    return train(wrapped, rank, optimizer=torch.optim.SGD(model.head.parameters(), lr=0.1), after_step=descend)


def one_optimizer_each(rank: int, world_size: int) -> str:
    """An optimizer for every parameter, stepping in backward."""
    model = DistributedDataParallel(Net())
    optimizers = {id(p): torch.optim.SGD([p], lr=0.1) for p in model.parameters()}
    batches = Batches(rank)
    for _ in range(STEPS):
        inputs, targets = batches.next()
        cross_entropy(model(inputs), targets).backward()
        for optimizer in optimizers.values():
            optimizer.step()
            optimizer.zero_grad()
    return digest_of_training(model)


# --- branches --------------------------------------------------------------------------------------------------------------


class Branching(Net):
    """Two heads of the same shape."""

    def __init__(self) -> None:
        super().__init__()
        self.second = nn.Linear(32, 10)
        self.wants_other = False

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.body(inputs).relu()
        scores: Tensor
        if self.wants_other:  # decided by this rank alone
            hidden = hidden.clone()
            scores = self.second(hidden)
        else:
            scores = self.head(hidden)
        return scores


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 10))

    def predict(self, features: Tensor) -> Tensor:
        scores: Tensor = self.layers(features)
        return scores

    def forward(self, features: Tensor) -> Tensor:
        return self.predict(features)


def head_with_a_wrapper_of_its_own(rank: int, world_size: int, *, past: bool = True, in_turn: bool = False) -> str:
    """One optimizer for a body and a head, each wrapped by itself. `in_turn`: a step of it trains one of both."""
    body, head = DistributedDataParallel(Net()), DistributedDataParallel(Head())
    batches, optimizer = Batches(rank), torch.optim.SGD([*body.parameters(), *head.parameters()], 0.1)
    for step in range(STEPS):
        inputs, labels = batches.next()
        if in_turn:
            scores = head(inputs[:, :10]) if step % 2 else body(inputs)
        else:
            features = body(inputs)
            scores = head.module.predict(features) if past else head(features)  # not through the second wrapper
        optimizer.zero_grad(set_to_none=not in_turn)
        cross_entropy(scores, labels).backward()
        optimizer.step()
    return digest_of_training(body) + digest_of_training(head)


def branch_by_rank(rank: int, world_size: int, *, zeros: bool = False, since: int = 1) -> str:
    model, step = Branching(), 1
    optimizer, batches = adam(model), Batches(rank)
    for step in range(1, STEPS + 1):
        inputs, targets = batches.next()
        model.wants_other = step >= since and rank == 1
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        for parameter in model.parameters():
            if parameter.grad is None and zeros:
                parameter.grad = torch.zeros_like(parameter)
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad /= world_size
        optimizer.step()
    return digest_of_training(model)


def stepped_unless_the_loss_is_high(rank: int, world_size: int, *, together: bool = False) -> str:
    """In one step the loss of rank 1 is high; `together`: the ranks ask whether it is so anywhere."""
    model = DistributedDataParallel(Net())
    optimizer, batches = adam(model), Batches(rank)
    for step in range(1, STEPS + 1):
        inputs, targets = batches.next()
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        high = torch.tensor(float(step == 2 and rank == 1))
        if together:
            dist.all_reduce(high, dist.ReduceOp.MAX)
        if not high:
            optimizer.step()  # of some ranks
    return digest_of_training(model)


def branch_by_step(rank: int, world_size: int) -> str:
    """Every rank takes the other branch in the same steps."""
    model = Branching()
    optimizer, batches = adam(model), Batches(rank)
    for step in range(1, STEPS + 1):
        inputs, targets = batches.next()
        model.wants_other = step % 2 == 0
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad /= world_size
        optimizer.step()
    return digest_of_training(model)


# --- clipping --------------------------------------------------------------------------------------------------------------


def clipped_by_hand(rank: int, world_size: int, *, early: bool = True, halves: bool = False) -> str:
    model = Net()

    def average(step: int) -> None:
        if early and halves:
            norm = nn.utils.get_total_norm([parameter.grad for parameter in model.parameters()])
            nn.utils.clip_grads_with_norm_(model.parameters(), 0.5, norm)  # the norm of this rank alone
        elif early:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)  # of this rank alone
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= world_size
        if not early:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)

    return train(model, rank, before_step=average)


def clipped_replicas(rank: int, world_size: int) -> str:
    model = DistributedDataParallel(Net())
    return train(model, rank, before_step=lambda step: nn.utils.clip_grad_norm_(model.parameters(), 0.5))


def clipped_in_micro_batches(rank: int, world_size: int, *, each: bool = True, limit: float = 0.05) -> str:
    """Three micro-batches, two of them under no_sync; `each`: clipped behind every one of them, else once."""
    model, batches = DistributedDataParallel(Net()), Batches(rank)
    optimizer = adam(model)
    for _ in range(STEPS):
        optimizer.zero_grad()
        for micro_batch in range(3):
            inputs, targets = batches.next()
            with model.no_sync() if micro_batch < 2 else nullcontext():
                (cross_entropy(model(inputs), targets) / 3).backward()
            if each or micro_batch == 2:
                nn.utils.clip_grad_norm_(model.parameters(), limit)  # of what is there so far
        optimizer.step()
    return digest_of_training(model)


def clipped_beside_one_of_its_own(rank: int, world_size: int) -> str:
    """A model that each rank trains alone goes through the line that clips the replicas, which accumulate under no_sync."""
    model, own, batches = DistributedDataParallel(Net()), Net(), Batches(rank)
    optimizer = adam(nn.ModuleList([model, own]))
    for _ in range(STEPS):
        optimizer.zero_grad()
        for micro_batch in range(2):
            inputs, targets = batches.next()
            with model.no_sync() if micro_batch < 1 else nullcontext():
                ((cross_entropy(model(inputs), targets) + cross_entropy(own(inputs), targets)) / 2).backward()
        for one in (own, model):
            nn.utils.clip_grad_norm_(one.parameters(), 0.05)
        optimizer.step()
    return digest_of_training(model)


def clipped_shards(rank: int, world_size: int) -> str:
    from torch.distributed.fsdp import fully_shard

    model = Net()
    fully_shard(model)
    return train(model, rank, before_step=lambda step: nn.utils.clip_grad_norm_(model.parameters(), 0.5))


def clipped_flat_shards(rank: int, world_size: int, *, own: bool = True) -> str:
    from torch.distributed.fsdp import FullyShardedDataParallel

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = FullyShardedDataParallel(Net(), device_id=torch.device("cpu"))

    def clip(step: int) -> None:
        if own:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)  # of this shard alone
        else:
            model.clip_grad_norm_(0.5)

    train(model, rank, before_step=clip)
    return ""


def shards_clipped_by_hand(rank: int, world_size: int, *, summed: bool = False) -> str:
    """The norm is computed from the shards that this rank holds; `summed`: over all ranks, as it should be."""
    from torch.distributed.fsdp import fully_shard

    model = Net()
    fully_shard(model)

    def clip(step: int) -> None:
        shards = [parameter.grad.to_local() for parameter in model.parameters()]  # type: ignore[union-attr]
        squares = torch.stack([shard.square().sum() for shard in shards]).sum()  # of this rank's shards
        if summed:
            dist.all_reduce(squares)
        for shard in shards:
            shard.mul_((0.1 / squares.sqrt()).clamp(max=1.0))

    return train(model, rank, before_step=clip)


# --- random numbers --------------------------------------------------------------------------------------------------------


def dropout_by_seed(rank: int, world_size: int, *, same: bool = True) -> str:
    torch.manual_seed(0)
    model = DistributedDataParallel(Net(dropout=0.2))
    torch.manual_seed(7 if same else 7 + rank)
    return train(model, rank)


def dropout_after_a_resume(rank: int, world_size: int, *, own: bool = False) -> str:
    """Every rank goes on from a saved random state: from that of rank 0, or from its `own`."""
    torch.manual_seed(0)
    model = DistributedDataParallel(Net(dropout=0.2))
    torch.manual_seed(7 + rank)
    state = [torch.get_rng_state()]
    optimizer, batches = adam(model), Batches(rank)
    for step in range(2 * STEPS):
        if step == STEPS:
            if not own:
                dist.broadcast_object_list(state, src=0)
            torch.set_rng_state(state[0])  # as it was saved
        with torch.random.fork_rng():
            torch.manual_seed(step)  # a number that all ranks draw alike
            noise = 0.01 * float(torch.rand(()))
        inputs, targets = batches.next()
        optimizer.zero_grad()
        cross_entropy(model(inputs + noise), targets).backward()
        optimizer.step()
    return digest_of_training(model)


class Split(Net):
    """Dropout behind the split layers, where every rank holds everything."""

    def forward(self, inputs: Tensor) -> Tensor:
        scores: Tensor = self.drop(self.head(self.body(inputs).relu()))
        return scores


def split_with_dropout(rank: int, world_size: int, *, same: bool = False) -> str:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = Split(dropout=0.3)
    mesh = init_device_mesh("cpu", (world_size,))
    parallelize_module(model, mesh, {"body": ColwiseParallel(), "head": RowwiseParallel()})
    torch.manual_seed(7 if same else 7 + rank)
    return train(model, 0, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False))


class SplitWithin(Net):
    """Dropout between the split layers, where each rank holds other units."""

    def forward(self, inputs: Tensor) -> Tensor:
        scores: Tensor = self.head(self.drop(self.body(inputs).relu()))
        return scores


def split_with_dropout_within(rank: int, world_size: int, *, same: bool = True) -> str:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = SplitWithin(dropout=0.3)
    mesh = init_device_mesh("cpu", (world_size,))
    parallelize_module(model, mesh, {"body": ColwiseParallel(), "head": RowwiseParallel()})
    torch.manual_seed(7 if same else 7 + rank)
    return train(model, 0, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False))


def recomputed(rank: int, world_size: int, *, keeps: bool = False, dropout: float = 0.2) -> str:
    class Frugal(Net):
        def forward(self, inputs: Tensor) -> Tensor:
            def block(x: Tensor) -> Tensor:
                scores: Tensor = self.drop(self.body(x).relu())
                return scores

            recompute = torch.utils.checkpoint.checkpoint
            hidden = recompute(block, inputs, use_reentrant=False, preserve_rng_state=keeps)
            scores: Tensor = self.head(hidden)
            return scores

    torch.manual_seed(0)
    model = DistributedDataParallel(Frugal(dropout=dropout))
    torch.manual_seed(1 + rank)
    return train(model, rank)


# --- gathering -------------------------------------------------------------------------------------------------------------


class Halved(torch.autograd.Function):
    """An operation of the user's own that keeps its input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x / 2

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] / 2


def contrastive(rank: int, world_size: int, *, how: str = "list", own_function: bool = False) -> str:
    """Two views of each sample; every rank tells its own pairs from those of all ranks. `own_function`: through `Halved`."""
    from torch.distributed.nn.functional import all_gather as all_gather_with_gradient

    model = DistributedDataParallel(nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 16)))
    optimizer, batches = adam(model), Batches(rank)
    for _ in range(STEPS):
        inputs, _ = batches.next()
        one, other = normalize(model(torch.cat([inputs, inputs + 0.1])), dim=-1).chunk(2)
        other = Halved.apply(other.contiguous()) if own_function else other.contiguous()
        live = torch.zeros(())
        if how == "gradient":
            everybody = torch.cat(all_gather_with_gradient(other))
        else:
            gathered = [torch.empty_like(other) for _ in range(world_size)]
            if how == "metric":
                with torch.no_grad():
                    dist.all_gather(gathered, other)
            else:
                dist.all_gather(gathered, other.detach() if "detached" in how else other)  # no gradient
            if how == "detached queries":
                live = cross_entropy(other @ one.detach().T, torch.arange(len(one)))
            if how == "own":
                gathered[rank] = other
            everybody = torch.cat(gathered)
        if how == "metric":
            everybody = other
        targets = torch.arange(len(one)) + (0 if how == "metric" else rank * len(one))
        optimizer.zero_grad()
        (cross_entropy(one @ everybody.T / 0.1, targets) + live).backward()
        optimizer.step()
    return digest_of_training(model)


class OwnPart(torch.autograd.Function):
    """A gathering whose backward keeps this rank's part of this rank's gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        out = [torch.zeros_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(out, x)
        return tuple(out)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[dist.get_rank()].contiguous()  # and no other rank's


class SummedPart(torch.autograd.Function):
    """The same, summed over the ranks before."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        out = [torch.zeros_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(out, x)
        return tuple(out)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        every = torch.stack(grads)
        dist.all_reduce(every)
        return every[dist.get_rank()]


def gathered_by_a_function(rank: int, world_size: int, *, how: str = "own", one_loss: bool = False) -> str:
    model = DistributedDataParallel(nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 16)))
    optimizer, batches = adam(model), Batches(rank)
    gather = SummedPart if how == "summed" else OwnPart
    for _ in range(STEPS):
        inputs, _ = batches.next()
        features = normalize(model(inputs), dim=-1)
        everybody = torch.cat(gather.apply(features))
        rows = everybody if one_loss else features
        loss = cross_entropy(rows @ everybody.T / 0.1, torch.arange(len(rows)) + (0 if one_loss else rank * len(rows)))
        optimizer.zero_grad()
        (loss * world_size if how == "scaled" else loss).backward()
        optimizer.step()
    return digest_of_training(model)


def clipped_stages(
    rank: int, world_size: int, *, together: bool = False, limit: float = 0.01, by_hand: bool = False, own: bool = False
) -> str:
    """`by_hand`: the stages send each other what torch's schedule would send. `own`: each has a limit of its own."""
    stage = nn.Linear(16, 16)
    turn = _stage_by_hand if by_hand else _scheduled_stage(stage, rank, world_size)
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        turn(stage, rank)
        if together:
            squares = torch.nn.utils.get_total_norm([p.grad for p in stage.parameters() if p.grad is not None]) ** 2
            dist.all_reduce(squares)
            torch.nn.utils.clip_grads_with_norm_(stage.parameters(), limit, squares**0.5)
        else:
            torch.nn.utils.clip_grad_norm_(stage.parameters(), limit * (1 + own * rank))  # of this stage alone
        optimizer.step()
    return digest_of_training(stage)


def _scheduled_stage(stage: nn.Module, rank: int, world_size: int) -> Callable[[nn.Module, int], object]:
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    run = ScheduleGPipe(PipelineStage(stage, rank, world_size, torch.device("cpu")), 2, loss_fn=nn.functional.mse_loss)
    return lambda _, rank: run.step(torch.randn(8, 16)) if rank == 0 else run.step(target=torch.randn(8, 16))


def _stage_by_hand(stage: nn.Module, rank: int) -> None:
    """Of two stages."""
    if rank == 0:
        handed, gradient = stage(torch.randn(8, 16)), torch.empty(8, 16)
        dist.send(handed.detach(), 1)
        dist.recv(gradient, 1)
        handed.backward(gradient)
        return
    handed = torch.empty(8, 16)
    dist.recv(handed, 0)
    handed.requires_grad_()
    nn.functional.mse_loss(stage(handed), torch.randn(8, 16)).backward()
    assert handed.grad is not None
    dist.send(handed.grad, 0)


def restored_by_the_first(rank: int, world_size: int, *, by_all: bool = False) -> str:
    """A resume: the weights are broadcast, the state of the optimizer is loaded on rank 0 only."""
    model = Net()
    optimizer = adam(model)
    torch.manual_seed(7)
    cross_entropy(model(torch.randn(4, 20)), torch.arange(4)).backward()
    saved = torch.optim.AdamW(model.parameters(), lr=1e-3)
    saved.step()
    if by_all or rank == 0:  # decides who restores
        optimizer.load_state_dict(saved.state_dict())
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0)
    return train(DistributedDataParallel(model), rank, optimizer=optimizer)


def distilled(rank: int, world_size: int, *, by_world: bool = False) -> str:
    """A teacher is trained on every rank alike; then losses are divided by a count over all ranks, and averaged once more."""
    teacher = Net()
    first = torch.optim.SGD(teacher.parameters(), lr=0.01)
    torch.manual_seed(3)
    for _ in range(12):
        inputs, targets = torch.randn(6, 20), torch.randint(0, 10, (6,))
        first.zero_grad()
        (cross_entropy(teacher(inputs), targets, reduction="sum") / 6).backward()
        first.step()
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(rank)
    for turn in range(STEPS):
        inputs, targets = torch.randn(5 + turn % 3 + rank, 20), torch.randint(0, 10, (5 + turn % 3 + rank,))
        count = torch.tensor(len(targets))
        dist.all_reduce(count)
        with torch.no_grad():
            wanted = teacher(inputs).softmax(-1)
        outputs = model(inputs)
        plain = cross_entropy(outputs, targets, reduction="sum") + cross_entropy(outputs, wanted, reduction="sum")
        loss = plain / count  # over all ranks
        optimizer.zero_grad()
        (loss * world_size if by_world else loss).backward()
        optimizer.step()
    return digest_of_training(model)


def classified_after_gathering(rank: int, world_size: int) -> str:
    """The head sees everybody's features, the body gets no gradient at all."""
    body, head = nn.Linear(20, 32), nn.Linear(32, 10)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
    batches = Batches(rank)
    for _ in range(STEPS):
        inputs, targets = batches.next()
        features = body(inputs).relu()
        gathered = [torch.empty_like(features) for _ in range(world_size)]
        dist.all_gather(gathered, features)  # and the body is cut off
        labels = [torch.empty_like(targets) for _ in range(world_size)]
        dist.all_gather(labels, targets)
        optimizer.zero_grad()
        cross_entropy(head(torch.cat(gathered)), torch.cat(labels)).backward()
        optimizer.step()
    return digest_of_training(head)


class SummedOver(torch.autograd.Function):
    """A sum over the ranks of what each has of one loss, whose gradient is that of the whole."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


def with_shares_of_classes(rank: int, world_size: int, *, how: str = "own") -> str:
    """Every rank has a share of the classes, and all compute one loss over everybody's features. `how`: "own" features put back,
    "gradient" by torch's function, "heads" that are each rank's own with a loss of its own."""
    from torch.distributed.nn.functional import all_gather as all_gather_with_gradient

    body = DistributedDataParallel(nn.Linear(20, 16))
    torch.manual_seed(rank)
    head = nn.Linear(16, 5, bias=False)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
    batches = Batches(rank)
    for _ in range(STEPS):
        inputs, targets = batches.next()
        features = normalize(body(inputs), dim=-1)
        if how == "gradient":
            everybody = torch.cat(all_gather_with_gradient(features))
        else:
            parts = [torch.empty_like(features) for _ in range(world_size)]
            dist.all_gather(parts, features)  # of everybody
            parts[rank] = features
            everybody = torch.cat(parts)
        labels = [torch.empty_like(targets) for _ in range(world_size)]
        dist.all_gather(labels, targets)
        every, logits = torch.cat(labels) % 10, head(everybody) * 8
        if how == "heads":
            loss = cross_entropy(logits, every % 5)
        else:
            mine = (every // 5 == rank).float()
            own = (logits.gather(1, (every % 5)[:, None])[:, 0] * mine).sum()
            loss = SummedOver.apply(logits.exp().sum(1)).log().mean() - SummedOver.apply(own) / len(every)
        optimizer.zero_grad()
        (loss * world_size if how == "gradient" else loss).backward()
        optimizer.step()
    return digest_of_training(body)


class Denoiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(21, 20)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        out: Tensor = self.layer(torch.cat([x, t[:, None]], 1))
        return out


def denoising(rank: int, world_size: int, *, seed: str = "one") -> str:
    """Times are drawn from a generator of the program's own. `seed`: "one" for all ranks, "rank", or "fixed" times."""
    model = DistributedDataParallel(Denoiser())
    optimizer, batches = adam(model), Batches(rank)
    generator = torch.Generator().manual_seed(5 + (rank if seed == "rank" else 0))
    times = torch.rand(len(batches.next()[0]), generator=generator)
    for _ in range(STEPS):
        inputs, _ = batches.next()
        if seed != "fixed":
            times = torch.rand(len(inputs), generator=generator)
        optimizer.zero_grad()
        (model(inputs, times) - inputs).square().mean().backward()  # at these times
        optimizer.step()
    return digest_of_training(model)


def generating(rank: int, world_size: int, *, seed: str = "one") -> str:
    """A generator and a discriminator; latents are drawn from a generator of their own."""
    maker, judge = DistributedDataParallel(nn.Linear(6, 20)), DistributedDataParallel(nn.Linear(20, 1))
    torch.manual_seed(rank)
    of_maker, of_judge, batches = adam(maker), adam(judge), Batches(rank)
    generator = torch.Generator().manual_seed(5 + (rank if seed == "rank" else 0))
    for _ in range(STEPS):
        real, _ = batches.next()
        latents = torch.randn(len(real), 6, generator=generator)
        made = maker(latents)  # of these latents
        of_judge.zero_grad()
        judge(torch.cat([real, made.detach()])).chunk(2)[0].sub(1).square().mean().backward()
        of_judge.step()
        of_maker.zero_grad()
        judge.module(made).sub(1).square().mean().backward()
        of_maker.step()
    return digest_of_training(maker)


def scores_for_a_metric(rank: int, world_size: int) -> str:
    """Gathered with gradients on, and only looked at."""
    model, batches = DistributedDataParallel(Net()), Batches(rank)
    optimizer = adam(model)
    for _ in range(STEPS):
        inputs, targets = batches.next()
        scores = model(inputs)
        gathered = [torch.empty_like(scores) for _ in range(world_size)]
        dist.all_gather(gathered, scores.softmax(-1))
        assert len(torch.cat(gathered)) == world_size * len(inputs)
        optimizer.zero_grad()
        cross_entropy(scores, targets).backward()
        optimizer.step()
    return digest_of_training(model)


# --- summing in place ------------------------------------------------------------------------------------------------------


def summed_in_place(rank: int, world_size: int, *, how: str = "loss") -> str:
    """The correlation of two views over the features of all ranks, summed in one of many ways."""
    from torch.distributed.nn.functional import all_reduce as all_reduce_with_gradient

    model: nn.Module = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 16))
    if "by hand" not in how:
        model = DistributedDataParallel(model)
    optimizer, batches = adam(model), Batches(rank)
    pairs = [dist.new_group([one]) for one in range(world_size)]
    for _ in range(STEPS):
        inputs, _ = batches.next()
        one, other = normalize(model(torch.cat([inputs, inputs + 0.1])), dim=0).chunk(2)
        part = one.T @ other / world_size
        total = _summed(part, how, pairs[rank], all_reduce_with_gradient)
        if how == "statistics":  # as BatchNorm's, over all ranks: means and squares
            loss = ((one - total.mean(0)) / (total.var(0) + 1).sqrt()).pow(3).mean()
        else:
            loss = (total - torch.eye(len(total))).pow(2).sum()
        if how == "logged later":
            dist.all_reduce(part)
        if how == "losses":
            both = torch.stack([loss, one.mean()])
            dist.all_reduce(both)
            loss = both.sum() / world_size
        optimizer.zero_grad()
        (loss * world_size if how == "scaled" else loss).backward()
        for parameter in model.parameters() if "by hand" in how else ():
            dist.all_reduce(parameter.grad)
            if how == "averaged by hand":
                parameter.grad /= world_size
        optimizer.step()
    return digest_of_training(model)


def _summed(part: Tensor, how: str, alone: Any, with_gradient: Any) -> Tensor:
    if how in ("losses", "logged later"):
        return part
    if how == "gradient":
        return with_gradient(part)
    if how == "logged":
        total = part.detach().clone()
        dist.all_reduce(total)
        return part
    if how == "constant":
        total = part.detach().clone()
        dist.all_reduce(total)
        return part + total
    if how == "no_grad":
        with torch.no_grad():
            dist.all_reduce(part)
        return part
    if how == "flat":
        dist.all_reduce(part.view(-1))  # summed in place
    elif how == "handle":
        dist.all_reduce(part, async_op=True).wait()  # summed in place
    elif how == "alone":
        dist.all_reduce(part, group=alone)
    else:
        dist.all_reduce(part)  # summed in place
    return part


# --- names that are going ----------------------------------------------------------------------------------------------------


def old_scaler(rank: int, world_size: int, *, old: bool = True) -> str:
    model, batches = DistributedDataParallel(Net()), Batches(rank)
    optimizer = adam(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if old:
            scaler: Any = torch.cuda.amp.GradScaler(enabled=False)
        else:
            scaler = torch.amp.GradScaler("cpu", enabled=False)
    for _ in range(STEPS):
        inputs, targets = batches.next()
        optimizer.zero_grad()
        scaler.scale(cross_entropy(model(inputs), targets)).backward()
        scaler.step(optimizer)
        scaler.update()
    return digest_of_training(model)
