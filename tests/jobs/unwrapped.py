"""Parallelism written by hand: nothing but the bits tells who is whose replica. Ill ones, and their healthy twins."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, cat, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.nn.functional import all_gather, all_reduce
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

STEPS = 10


class Scores(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(12, 16), nn.Linear(16, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.outer(self.inner(inputs).relu())


def fitted_alone(rank: int, rows: Tensor) -> nn.Module:
    """A model that this rank begins and fits by itself, of which the norms alone begin as everywhere."""
    with torch.random.fork_rng():
        torch.manual_seed(rank)
        model = nn.Sequential(nn.Linear(12, 32), nn.LayerNorm(32), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2, foreach=False)
    for number in range(8):
        optimizer.zero_grad()
        cross_entropy(model(rows[number::8]), rows[number::8, :4].argmax(1)).backward()
        optimizer.step()
    return model


def wrapped_in_part(rank: int, world_size: int, *, how: str) -> None:
    """`how`: what is done about the outer layer beside the wrapped inner one."""
    model, rows = Scores(), torch.randn(128, 12)
    if how == "each a model of its own before":
        own = fitted_alone(rank, rows)
        dist.all_gather_object([None] * world_size, float(own(rows).mean()))
    data = TensorDataset(rows, rows[:, :4].argmax(1))
    sampler = DistributedSampler(data)
    if how == "beside its blocks":
        fully_shard(model.inner)
    elif how in ("whole", "ignored", "each a model of its own before"):
        if how == "ignored":
            names = ["outer.weight", "outer.bias"]
            DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, names)
        model = DistributedDataParallel(model)
    else:
        model.inner = DistributedDataParallel(model.inner)  # a part
    if how == "data of its own":
        data, sampler = TensorDataset(rows + rank, rows[:, :4].argmax(1)), None
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2, foreach=False)
    for epoch in range(2):
        if sampler is not None:
            sampler.set_epoch(epoch)
        for number, (inputs, labels) in enumerate(DataLoader(data, 8, sampler=sampler)):
            loss = cross_entropy(model(inputs), labels)
            if how == "shown now and then" and number == 1:
                shown = torch.zeros(world_size, 8, 4)
                dist.all_gather_into_tensor(shown, model(inputs).detach().unsqueeze(0))
            if how == "rows are traded":
                loss = loss + 0.1 * cat(all_gather(model.inner(inputs))).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            if how == "by hand":
                for parameter in model.outer.parameters():
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= world_size
            optimizer.step()


class Tables(nn.Module):
    """Lookup tables with sparse gradients, an adapter beside them, and a dense tower."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.table_adapter = nn.Embedding(40, 8, sparse=True), nn.Linear(12, 8)
        self.tower = nn.Linear(16, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        rows = (inputs[:, 0] * 10).long().clamp(0, 39)
        return self.tower(cat([self.table(rows), self.table_adapter(inputs)], -1))


def ignored_tables(rank: int, world_size: int, *, prefix: str = "table", own: bool = False) -> None:
    """What begins with `prefix` is kept out of the wrapper, and the sparse gradients of the table are summed by hand. `own`: so
    is the adapter, which nobody forgets."""
    model, rows = Tables(), torch.randn(160, 12)
    data = TensorDataset(rows, rows[:, :4].argmax(1))
    names = [name for name, _ in model.named_parameters() if name.startswith(prefix)]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, names)  # ignored
    wrapped, sampler = DistributedDataParallel(model), DistributedSampler(data)
    dense = [p for name, p in model.named_parameters() if name != "table.weight"]
    optimizers = torch.optim.Adam(dense, 1e-2), torch.optim.SparseAdam([model.table.weight], 1e-2)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for inputs, labels in DataLoader(data, 8, sampler=sampler):
            for optimizer in optimizers:
                optimizer.zero_grad()
            cross_entropy(wrapped(inputs), labels).backward()
            for parameter in (model.table.weight, *(model.table_adapter.parameters() if own else ())):
                gradient = parameter.grad.coalesce() if parameter.grad.is_sparse else parameter.grad  # type: ignore[union-attr]
                dist.all_reduce(gradient)
                parameter.grad = gradient / world_size
            for optimizer in optimizers:
                optimizer.step()


def batch(step: int, rows: int = 16, width: int = 12) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(rows, width, generator=torch.Generator().manual_seed(step))
    return inputs, inputs[:, :4].argmax(1)


def average_in_halves(model: nn.Module, world_size: int) -> None:
    """Gradients travel in two pieces whose shapes are nobody's, filled up to a round number."""
    grads = [p.grad.reshape(-1) for p in model.parameters() if p.grad is not None]
    flat = torch.cat([*grads, torch.zeros(-sum(map(len, grads)) % 64)])
    for piece in flat.chunk(2):
        dist.all_reduce(piece)
    flat /= world_size
    at = 0
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad.copy_(flat[at : at + parameter.numel()].view_as(parameter))
        at += parameter.numel()


def averaged_in_pieces(
    rank: int, world_size: int, *, edits: int | None = None, loads: int | None = None, scheduled: bool = False
) -> None:
    """`edits`: the rank that changes a weight of its own after step 5; `loads`: the one that starts from other weights."""
    model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 4))
    if rank == loads:
        with torch.no_grad():
            model[0].weight.mul_(0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    for step in range(STEPS):
        inputs, targets = batch(step * world_size + rank)
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        average_in_halves(model, world_size)
        optimizer.step()
        if scheduled:
            schedule.step()
        if rank == edits and step == 4:
            with torch.no_grad():
                model[2].weight.clamp_(-0.1, 0.1)


class Layer(nn.Module):
    """Dense layers that every rank holds, and an expert of each rank's own."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.inner, self.middle, self.outer = nn.Linear(12, 16), nn.Linear(16, 16), nn.Linear(16, 4)
        torch.manual_seed(100 + rank)
        self.expert = nn.Linear(16, 16)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.middle(self.inner(inputs).relu())
        return self.outer(hidden + self.expert(hidden).tanh())  # type: ignore[no-any-return]


def experts(rank: int, world_size: int, *, whole: bool = False) -> None:
    """Clips by the norm of what this rank holds, or by that of all experts."""
    model = Layer(rank)
    own = list(model.expert.parameters())
    dense = [p for p in model.parameters() if all(p is not one for one in own)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        inputs, targets = batch(step * world_size + rank)
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        for parameter in dense:
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad)
            parameter.grad /= world_size
        part = torch.stack([p.grad.square().sum() for p in own if p.grad is not None]).sum()
        if whole:
            dist.all_reduce(part)
        total = (part + sum(p.grad.square().sum() for p in dense if p.grad is not None)).sqrt()
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad.mul_((0.1 / total).clamp(max=1.0))
        optimizer.step()


def divided_by_a_count(rank: int, world_size: int, *, times: bool = False) -> None:
    """A summed loss over the number of words of all ranks, which the wrapper averages again; `times` the ranks, it is right."""
    model = DistributedDataParallel(nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        inputs, targets = batch(step * world_size + rank, rows=8 + 3 * step + rank)
        count = torch.tensor(float(len(inputs)))
        dist.all_reduce(count)
        loss = cross_entropy(model(inputs), targets, reduction="sum")
        optimizer.zero_grad()
        (loss * world_size / count if times else loss / count).backward()
        optimizer.step()


def sums_in_its_second_stage(rank: int, world_size: int, *, divides_loss: bool = False) -> None:
    """A communication hook that averages for 20 steps and only sums afterwards; right where the loss is divided from then on."""
    model = DistributedDataParallel(nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    done = 0

    def hook(state, bucket):  # type: ignore[no-untyped-def]  # torch compares annotations themselves, not their texts
        flat = bucket.buffer() if done >= 20 else bucket.buffer().div_(world_size)
        return dist.all_reduce(flat, async_op=True).get_future().then(lambda one: one.value()[0])

    model.register_comm_hook(None, hook)
    for done in range(40):
        inputs, targets = batch(done * world_size + rank)
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs), targets)
        (loss / world_size if divides_loss and done >= 20 else loss).backward()
        optimizer.step()


class Attending(nn.Module):
    """Sees a part of the sequence on each rank."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.query, self.key, self.out = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.norm(inputs)
        keys = torch.cat(all_gather(self.key(hidden).contiguous()), 1)
        weights = (self.query(hidden) @ keys.transpose(1, 2)).softmax(-1)
        return self.out(weights @ keys).squeeze(-1)  # type: ignore[no-any-return]


def sequence_region(rank: int, world_size: int, *, everything: bool = False) -> None:
    """Sums the gradients of all layers over the sequence group, or of all but the normalisation."""
    model = Attending()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    length = 12 // world_size
    mine = slice(rank * length, (rank + 1) * length)
    for step in range(STEPS):
        inputs = torch.randn(4, 12, 8, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        (mse_loss(model(inputs[:, mine]), inputs.sum(2).sin()[:, mine]) / world_size).backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            if everything or not name.startswith("norm"):
                dist.all_reduce(parameter.grad)
        optimizer.step()


def sequence_region_in_copies(rank: int, world_size: int, *, wraps: bool = False, everything: bool = False) -> None:
    """The same region twice: what its two ranks have summed is averaged with the other one, by hand or by a wrapper."""
    regions, copies = ([dist.new_group(ranks) for ranks in axis] for axis in ([[0, 1], [2, 3]], [[0, 2], [1, 3]]))
    region, copy = regions[rank // 2], copies[rank % 2]
    torch.manual_seed(0)
    inner = Attending()
    model = DistributedDataParallel(inner, process_group=copy) if wraps else inner  # type: ignore[arg-type]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    mine = slice(rank % 2 * 6, rank % 2 * 6 + 6)
    for step in range(STEPS):
        inputs = torch.randn(4, 12, 8, generator=torch.Generator().manual_seed(2 * step + rank // 2))
        optimizer.zero_grad()
        (mse_loss(model(inputs[:, mine]), inputs.sum(2).sin()[:, mine]) / 2).backward()
        for name, parameter in inner.named_parameters():
            if not wraps:
                dist.all_reduce(parameter.grad, group=copy)
            if everything or not name.startswith("norm"):
                dist.all_reduce(parameter.grad, group=region)
        optimizer.step()


class Split(nn.Module):
    """One whole layer, and one of which each of two ranks has a half."""

    def __init__(self, half: int, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.group = group
        self.entrance = nn.Linear(12, 16)
        self.up = nn.Parameter(torch.randn(2, 16, 16)[half].clone() * 0.2)
        self.down = nn.Parameter(torch.randn(2, 4, 16)[half].clone() * 0.2)

    def forward(self, inputs: Tensor) -> Tensor:
        inner = torch.relu(self.entrance(inputs)) @ self.up.T
        return all_reduce(torch.relu(inner) @ self.down.T, group=self.group)


class Shown(torch.autograd.Function):
    """The same to every rank of a region; what comes back is the sum over it."""

    @staticmethod
    def forward(_: Any, rows: Tensor) -> Tensor:
        return rows.view_as(rows)

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


class Summed(torch.autograd.Function):
    """The sum over a region, of which each rank gets the gradient."""

    @staticmethod
    def forward(_: Any, rows: Tensor) -> Tensor:
        rows = rows.clone()
        dist.all_reduce(rows)
        return rows

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient


class OneKey(nn.Module):
    """Queries that are split over the ranks, and one key for all of them, which each rank holds."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(2, 8, 12)[rank].clone() * 0.3)
        self.key = nn.Linear(12, 8, bias=False)
        self.out = nn.Parameter(torch.randn(2, 4, 8)[rank].clone() * 0.3)

    def forward(self, inputs: Tensor) -> Tensor:
        rows = Shown.apply(inputs)
        scores = torch.relu(rows @ self.query.T) * torch.tanh(self.key(rows))
        return Summed.apply(scores @ self.out.T)  # type: ignore[no-any-return]


def one_key_for_all_queries(rank: int, world_size: int, *, everything: bool = False) -> None:
    """The gradient of the key that each rank holds is that of its own queries, and is summed over the ranks, or is not."""
    model = nn.Sequential(nn.Linear(12, 12), OneKey(rank))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(STEPS):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        for name, parameter in model.named_parameters():
            if everything and "key" in name:
                dist.all_reduce(parameter.grad)
        optimizer.step()


def tied_stages(rank: int, world_size: int, *, summed: bool = False, alike: bool = False) -> None:
    """A table for words that the first stage reads and the last one writes with; `alike`: all stages begin with one seed."""
    torch.manual_seed(0 if alike else rank)
    stage = nn.ModuleDict({"body": nn.Linear(16, 16), "more": nn.Linear(16, 16)})
    stage.word = nn.Parameter(torch.randn(12, 16, generator=torch.Generator().manual_seed(7)))  # for both ends
    optimizer = torch.optim.Adam(stage.parameters(), lr=1e-3)
    message = torch.zeros(8, 16)
    for step in range(STEPS):
        words = torch.randint(12, (8,), generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        if rank == 0:
            output = stage["more"](stage["body"](stage.word[words]))
            dist.send(output.detach(), 1)
            dist.recv(message, 1)
            output.backward(message)
        else:
            dist.recv(message, 0)
            inputs = message.clone().requires_grad_()
            cross_entropy(stage["more"](stage["body"](inputs)) @ stage.word.T, words).backward()
            dist.send(inputs.grad, 0)
        if summed:
            dist.all_reduce(stage.word.grad)
        optimizer.step()


def heads_of_their_own(rank: int, world_size: int) -> None:
    """A body that both train and a head of each rank's own, of one batch, with one loss on record: the mean of both."""
    body, head = nn.Linear(12, 16), nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 4))
    extra = nn.Parameter(torch.randn(2, 4)[rank].clone())
    optimizer = torch.optim.Adam([*body.parameters(), *head.parameters(), extra], lr=1e-3)
    for step in range(STEPS):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        loss = cross_entropy(head(torch.relu(body(inputs))) + extra, (targets + rank) % 4)
        Summed.apply(loss / world_size).backward()
        for parameter in body.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()


def mean_of_one(rows: Tensor) -> Tensor:
    total = rows.sum(0)
    dist.all_reduce(total)
    return total / len(rows)  # of one rank


def mean_of_all(rows: Tensor) -> Tensor:
    total = rows.sum(0)
    dist.all_reduce(total)
    return total / (len(rows) * dist.get_world_size())


def centred(rank: int, world_size: int, *, by_all: bool = False) -> None:
    """Keeps the mean of what the model gives over the ranks: a sum, divided by the rows of all, or of this rank."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(12, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    center = torch.zeros(4)
    for step in range(STEPS):
        inputs, targets = batch(2 * step + rank)
        optimizer.zero_grad()
        scores = model(inputs)
        cross_entropy(scores - center, targets).backward()
        optimizer.step()
        center = 0.9 * center + 0.1 * (mean_of_all if by_all else mean_of_one)(scores.detach())


def mesh_axes(rank: int, world_size: int, *, right: bool = False) -> None:
    """Two axes of two ranks: a whole layer's gradients are summed over the one that splits, not the one that replicates."""
    halves, copies = ([dist.new_group(ranks) for ranks in axis] for axis in ([[0, 1], [2, 3]], [[0, 2], [1, 3]]))
    splitting, replicating = halves[rank // 2], copies[rank % 2]
    model = Split(rank % 2, splitting)  # type: ignore[arg-type]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(STEPS):
        inputs, targets = batch(2 * step + rank // 2)
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            if name.startswith("entrance"):
                dist.all_reduce(parameter.grad, group=splitting)
            if right or not name.startswith("entrance"):
                dist.all_reduce(parameter.grad, group=replicating)
        optimizer.step()


def divided_by_its_own_count(rank: int, world_size: int, *, alike: bool = False) -> None:
    """Each rank divides its summed loss by what it counts, which is far more on one of them, or about the same."""
    model = DistributedDataParallel(nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(STEPS):
        inputs, targets = batch(2 * step + rank, 30 + step + rank * (1 if alike else 40))
        optimizer.zero_grad()
        count = torch.tensor(float(len(targets)))
        (cross_entropy(model(inputs), targets, reduction="sum") / count).backward()  # of its own
        optimizer.step()


def trials(rank: int, world_size: int, *, compare: bool = True) -> None:
    """Independent trials from one seed, which only compare their losses."""
    model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * (rank + 1))
    for step in range(STEPS):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses = [torch.zeros(()) for _ in range(world_size)]
        if compare:
            dist.all_gather(losses, loss.detach())


class Tower(nn.Module):
    """A table whose gradients may be sparse, below dense layers."""

    def __init__(self, *, sparse: bool = False) -> None:
        super().__init__()
        self.table = nn.Embedding(30, 8, sparse=sparse)
        self.inner, self.outer = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, rows: Tensor) -> Tensor:
        return self.outer(self.inner(self.table(rows)).relu())  # type: ignore[no-any-return]


def average_but_sparse(model: nn.Module, world_size: int, densifies: bool) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None and parameter.grad.is_sparse and densifies:
            whole = parameter.grad.to_dense()
            dist.all_reduce(whole)
            parameter.grad = (whole / world_size).to_sparse(1)
            continue
        if parameter.grad is None or parameter.grad.is_sparse:
            continue
        dist.all_reduce(parameter.grad)
        parameter.grad /= world_size


def average_matrices(model: nn.Module, world_size: int, densifies: bool) -> None:
    large = [p.grad for p in model.parameters() if p.grad is not None and (densifies or p.grad.dim() > 1)]
    flat = torch.cat([grad.reshape(-1) for grad in large])
    dist.all_reduce(flat)
    flat /= world_size
    for grad, mean in zip(large, flat.split([grad.numel() for grad in large]), strict=True):
        grad.copy_(mean.view_as(grad))


def average_but_named(model: nn.Module, world_size: int, densifies: bool) -> None:
    for name, parameter in model.named_parameters():
        if parameter.grad is None or (name.startswith("outer") and not densifies):
            continue
        dist.all_reduce(parameter.grad)
        parameter.grad /= world_size


class Mixture(nn.Module):
    """One expert on each rank, of weights of its own from the start and a bias of zeros, and a router that is everybody's."""

    def __init__(self, rank: int, router: str) -> None:
        super().__init__()
        self.below, self.router = nn.Linear(12, 8), router
        self.add_module(router, nn.Linear(8, 2))
        with torch.random.fork_rng():
            torch.manual_seed(100 + rank)
            self.experts = nn.ModuleList([nn.Linear(8, 4)])
        nn.init.zeros_(self.experts[0].bias)  # type: ignore[arg-type]
        self.above = nn.Linear(4, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.below(inputs).relu()
        weight = getattr(self, self.router)(hidden).softmax(-1)[:, :1]
        return self.above(weight * self.experts[0](hidden))  # type: ignore[no-any-return]


def mixture(rank: int, world_size: int, *, router: str) -> None:
    """Gradients travel in one flat buffer, without those of experts, which have a collective of their own in the forward."""
    torch.manual_seed(0)
    model = Mixture(rank, router)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        inputs, targets = batch(2 * step + rank)
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs), targets)
        dist.all_reduce(torch.zeros(4000))
        loss.backward()
        grads = [p.grad for name, p in model.named_parameters() if "expert" not in name and p.grad is not None]
        flat = torch.cat([grad.reshape(-1) for grad in grads])
        dist.all_reduce(flat)
        flat /= world_size
        for grad, mean in zip(grads, flat.split([grad.numel() for grad in grads]), strict=True):
            grad.copy_(mean.view_as(grad))
        optimizer.step()


REDUCTIONS = {"sparse": average_but_sparse, "matrices": average_matrices, "named": average_but_named}


def average_those_of_one(optimizer: torch.optim.Optimizer, world_size: int) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            dist.all_reduce(parameter.grad)
            parameter.grad /= world_size


def tower(rank: int, world_size: int, *, by: str, all_of_them: bool = False, broadcasts: bool = True) -> None:
    """`by`: what the reduction leaves out, unless it is to take `all_of_them`: `optimizer`, what a second one trains."""
    torch.manual_seed(0)
    model = Tower(sparse=by == "sparse")
    tables, dense = [model.table.weight], [*model.inner.parameters(), *model.outer.parameters()]
    optimizers: list[torch.optim.Optimizer] = [torch.optim.SGD(model.parameters(), lr=0.1)]
    if by == "sparse":
        optimizers = [torch.optim.SparseAdam(tables, lr=0.01), torch.optim.Adam(dense, lr=0.003)]
    if by == "optimizer":
        optimizers = [torch.optim.SGD(model.inner.parameters(), 0.1), torch.optim.SGD([*tables, *dense[2:]], 0.1)]
    for parameter in model.parameters() if broadcasts else ():
        dist.broadcast(parameter.data, 0)
    for step in range(STEPS):
        rows = torch.randint(30, (16,), generator=torch.Generator().manual_seed(step * world_size + rank))
        model.zero_grad()
        cross_entropy(model(rows), rows % 4).backward()
        for optimizer in optimizers[: len(optimizers) if all_of_them else 1] if by == "optimizer" else ():
            average_those_of_one(optimizer, world_size)
        if by != "optimizer":
            REDUCTIONS[by](model, world_size, all_of_them)
        for optimizer in optimizers:
            optimizer.step()
