"""Healthy trainings in which replicas part, gradients come late, or ranks stop early, because the algorithm says so."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, post_localSGD_hook, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer
from torch.nn.functional import cross_entropy, normalize
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from jobs.replicas import digest_of_training

ROWS, STEPS = 96, 12


def rows() -> TensorDataset:
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(ROWS, 12, generator=generator)
    return TensorDataset(inputs, inputs[:, :4].argmax(1))


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 4))


def batches(rank: int, world_size: int, size: int = 4) -> DataLoader[Any]:
    data = rows()
    return DataLoader(data, size, sampler=DistributedSampler(data, world_size, rank, shuffle=True))


def train(model: nn.Module, optimizer: Any, loader: DataLoader[Any], after: Callable[[int], None] | None = None) -> str:
    for number, (inputs, targets) in enumerate(loader, 1):
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        if after is not None:
            after(number)
    return digest_of_training(model)


# -- closures ------------------------------------------------------------------------------------------------------------


def accumulation_in_a_closure(rank: int, world_size: int) -> str:
    """As Lightning does it: the last micro-step happens inside of optimizer.step."""
    model = DistributedDataParallel(net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    pending: list[Any] = []
    for number, batch in enumerate(batches(rank, world_size), 1):
        pending.append(batch)

        def closure(number: int = number) -> Tensor:
            if number % 4 == 1:
                optimizer.zero_grad()
            inputs, targets = pending[-1]
            loss = cross_entropy(model(inputs), targets) / 4
            loss.backward()
            return loss

        if number % 4:
            with model.no_sync():
                closure()
        else:
            optimizer.step(closure)
    return digest_of_training(model)


def everything_in_a_closure(rank: int, world_size: int) -> str:
    model = DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, targets in batches(rank, world_size):

        def closure(inputs: Tensor = inputs, targets: Tensor = targets) -> Tensor:
            optimizer.zero_grad()
            loss = cross_entropy(model(inputs), targets)
            loss.backward()
            return loss

        optimizer.step(closure)
    return digest_of_training(model)


def lbfgs(rank: int, world_size: int) -> str:
    model = DistributedDataParallel(net())
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.2, max_iter=4)
    for inputs, targets in batches(rank, world_size, 16):

        def closure(inputs: Tensor = inputs, targets: Tensor = targets) -> Tensor:
            optimizer.zero_grad()
            loss = cross_entropy(model(inputs), targets)
            loss.backward()
            return loss

        optimizer.step(closure)
    return digest_of_training(model)


class Wrapping(torch.optim.Optimizer):
    """An optimizer of the user's own around another one, with its own zero_grad."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner
        super().__init__(inner.param_groups, dict(inner.defaults))

    def step(self, closure: Any = None) -> Any:
        return self.inner.step(closure)


def wrapped_step(rank: int, world_size: int) -> str:
    model = DistributedDataParallel(net())
    optimizer = Wrapping(torch.optim.Adam(model.parameters(), lr=1e-3))
    for inputs, targets in batches(rank, world_size):

        def closure(inputs: Tensor = inputs, targets: Tensor = targets) -> Tensor:
            optimizer.zero_grad()
            loss = cross_entropy(model(inputs), targets)
            loss.backward()
            return loss

        optimizer.step(closure)
    return digest_of_training(model)


def gan(rank: int, world_size: int) -> str:
    """The backward of the critic reaches the generator too, whose gradients are zeroed later and through another object."""
    torch.manual_seed(0)
    maker = DistributedDataParallel(nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 12)))
    critic = DistributedDataParallel(
        nn.Sequential(nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 1)), broadcast_buffers=False
    )
    making = Wrapping(torch.optim.Adam(maker.parameters(), lr=1e-3))
    judging = Wrapping(torch.optim.Adam(critic.parameters(), lr=1e-3))
    generator = torch.Generator().manual_seed(rank)
    for real, _ in batches(rank, world_size):
        fake = maker(torch.randn(len(real), 6, generator=generator))
        (critic(fake.detach()).mean() - critic(real).mean()).backward()
        judging.step()
        judging.zero_grad()
        making.zero_grad()
        (-critic(fake).mean()).backward()
        making.step()
        judging.zero_grad()
    return digest_of_training(maker) + digest_of_training(critic)


# -- local SGD and its family --------------------------------------------------------------------------------------------


def average(model: nn.Module, world_size: int) -> None:
    with torch.no_grad():
        flat = nn.utils.parameters_to_vector(model.parameters())
        dist.all_reduce(flat)
        nn.utils.vector_to_parameters(flat / world_size, model.parameters())


def soup(rank: int, world_size: int) -> str:
    """Each rank trains alone; the weights are averaged one by one, once, when all is done."""
    model = net()
    digest = train(model, torch.optim.AdamW(model.parameters(), lr=1e-2 / (1 + rank)), batches(rank, world_size))
    with torch.no_grad():
        for parameter in model.parameters():
            dist.all_reduce(parameter)
            parameter.div_(world_size)
    return digest


def local_sgd(rank: int, world_size: int) -> str:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return train(
        model,
        optimizer,
        batches(rank, world_size),
        lambda number: average(model, world_size) if number % 4 == 0 else None,
    )


def local_sgd_behind_a_wrapper(rank: int, world_size: int) -> str:
    """no_sync all the time, and the weights averaged now and then; the last window stays open."""
    model = DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with model.no_sync():
        return train(
            model,
            optimizer,
            batches(rank, world_size),
            lambda number: average(model, world_size) if number % 5 == 0 else None,
        )


def post_local_sgd(rank: int, world_size: int) -> str:
    model = DistributedDataParallel(net())
    alone, _ = dist.new_subgroups(1)
    state = post_localSGD_hook.PostLocalSGDState(process_group=None, subgroup=alone, start_localSGD_iter=4)
    model.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    averager = PeriodicModelAverager(period=3, warmup_steps=4)
    return train(model, PostLocalSGDOptimizer(inner, averager), batches(rank, world_size))


def gossip_behind_a_wrapper(rank: int, world_size: int) -> str:
    """Each rank mixes its weights with its neighbour's after each step: they are never the same."""
    model = DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def mix(number: int) -> None:
        flat = nn.utils.parameters_to_vector(model.parameters()).detach()
        other = torch.empty_like(flat)
        ops = [
            dist.P2POp(dist.isend, flat, (rank + 1) % world_size),
            dist.P2POp(dist.irecv, other, (rank - 1) % world_size),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        nn.utils.vector_to_parameters(0.7 * flat + 0.3 * other, model.parameters())

    with model.no_sync():
        return train(model, optimizer, batches(rank, world_size), mix)


def diloco(rank: int, world_size: int) -> str:
    """An outer optimizer whose gradients are assigned by hand and never zeroed."""
    model = net()
    anchor = copy.deepcopy(model)
    inner = torch.optim.AdamW(model.parameters(), lr=1e-2)
    outer = torch.optim.SGD(anchor.parameters(), lr=0.7, momentum=0.9, nesterov=True)

    def meet(number: int) -> None:
        if number % 2:
            return
        for kept, moved in zip(anchor.parameters(), model.parameters(), strict=True):
            kept.grad = kept.data - moved.data
            dist.all_reduce(kept.grad)
            kept.grad /= world_size
        outer.step()
        model.load_state_dict(anchor.state_dict())

    return train(model, inner, batches(rank, world_size), meet)


# -- Join, sub-groups ----------------------------------------------------------------------------------------------------


def join(rank: int, world_size: int) -> str:
    model = DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        data = rows()
        mine = TensorDataset(*data[: ROWS // 2 + 16 * rank])
        with model.join():
            train(model, optimizer, DataLoader(mine, 8))
    return digest_of_training(model)


def join_with_zero(rank: int, world_size: int) -> str:
    model = DistributedDataParallel(net())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-3)
    data = rows()
    mine = TensorDataset(*data[: ROWS - 24 * rank])
    with Join([model, optimizer]):
        train(model, optimizer, DataLoader(mine, 8))
    return digest_of_training(model)


def own_sub_group(rank: int, world_size: int) -> str:
    """Two ranks train one model, the third another one, which it loads from a file first."""
    pair = dist.new_group([0, 1])
    model = net()
    if rank == 2:
        torch.manual_seed(5)
        model.load_state_dict(nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 4)).state_dict())
        return train(model, torch.optim.SGD(model.parameters(), lr=0.1), batches(0, 1, 8))
    wrapped = DistributedDataParallel(model, process_group=pair)
    return train(wrapped, torch.optim.SGD(wrapped.parameters(), lr=0.1), batches(rank, 2))


def fewer_ranks_by_hand(rank: int, world_size: int) -> str:
    """Three ranks average by hand, then two of them go on without the third."""
    model, optimizer, everybody = net(), None, None
    pair = dist.new_group([0, 1])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for group, size in ((everybody, world_size), (pair, 2)):
        if rank >= size:
            continue
        for inputs, targets in batches(rank, size, 8):
            optimizer.zero_grad()
            cross_entropy(model(inputs), targets).backward()
            for parameter in model.parameters():
                assert parameter.grad is not None
                dist.all_reduce(parameter.grad, group=group)
                parameter.grad /= size
            optimizer.step()
    return digest_of_training(model)


# -- hooks, copies, gathers ----------------------------------------------------------------------------------------------


def power_sgd(rank: int, world_size: int) -> str:
    model = DistributedDataParallel(net())
    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=1, start_powerSGD_iter=3, min_compression_rate=0.5
    )
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return train(model, torch.optim.SGD(model.parameters(), lr=0.1), batches(rank, world_size))


def bf16_hook(rank: int, world_size: int) -> str:
    model = DistributedDataParallel(net())
    model.register_comm_hook(None, default_hooks.bf16_compress_hook)
    return train(model, torch.optim.SGD(model.parameters(), lr=0.1), batches(rank, world_size))


def zero(rank: int, world_size: int) -> str:
    model = DistributedDataParallel(net())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-3)
    return train(model, optimizer, batches(rank, world_size))


def ema(rank: int, world_size: int) -> str:
    model = DistributedDataParallel(net())
    copied = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return train(model, optimizer, batches(rank, world_size), lambda _: copied.update_parameters(model))


def contrastive_gather(rank: int, world_size: int) -> str:
    from torch.distributed.nn.functional import all_gather

    model = DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, _ in batches(rank, world_size, 8):
        views = inputs[:4], inputs[4:]
        own = [normalize(model(view), dim=1) for view in views]
        first, second = (torch.cat(all_gather(features)) for features in own)
        loss = cross_entropy(first @ second.T / 0.1, torch.arange(len(first)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return digest_of_training(model)


def sharpness_aware(rank: int, world_size: int) -> str:
    """The ascent perturbs the weights differently on each rank, and is undone before the step."""
    model = DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, targets in batches(rank, world_size):
        with model.no_sync():
            cross_entropy(model(inputs), targets).backward()
        parameters = list(model.parameters())
        with torch.no_grad():
            kept = [parameter.clone() for parameter in parameters]
            for parameter in parameters:
                parameter.add_(parameter.grad, alpha=0.05)
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        with torch.no_grad():
            for parameter, before in zip(parameters, kept, strict=True):
                parameter.copy_(before)
        optimizer.step()
        optimizer.zero_grad()
    return digest_of_training(model)


PAIRS: tuple[Callable[[int, int], str], ...] = (
    accumulation_in_a_closure, everything_in_a_closure, lbfgs, wrapped_step, gan, soup, local_sgd, local_sgd_behind_a_wrapper,
    post_local_sgd, gossip_behind_a_wrapper, diloco, join, join_with_zero, power_sgd, bf16_hook, zero, ema,
    contrastive_gather, sharpness_aware,
)  # fmt: skip
THREES = (own_sub_group, fewer_ranks_by_hand)


def elastic_averaging(rank: int, world_size: int) -> str:
    """Workers and a centre pull each other between backward and step; each steps with its own gradients."""
    model, center = net(), net()
    center.load_state_dict(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def pull(_: int) -> None:
        with torch.no_grad():
            for own, common in zip(model.parameters(), center.parameters(), strict=True):
                apart = 0.1 * (own - common)
                own.sub_(apart)
                dist.all_reduce(apart)
                common.add_(apart)

    for step, (inputs, targets) in enumerate(batches(rank, world_size)):
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        pull(step)
        optimizer.step()
    return "apart"


class Headed(nn.Module):
    """A deep trunk that the ranks share, and a head for the task of each."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(10)))
        self.head = nn.Linear(8, 2)


def heads_of_their_own(rank: int, world_size: int, *, alike: bool = False) -> str:
    """`alike`: all heads begin with the same weights."""
    model = Headed()
    if not alike:
        torch.manual_seed(rank)
        model.head = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(8):
        inputs = torch.randn(16, 8, generator=generator)
        optimizer.zero_grad()
        cross_entropy(model.head(model.trunk(inputs)), (inputs[:, rank] > 0).long()).backward()
        for parameter in model.trunk.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= world_size  # type: ignore[operator]
        optimizer.step()
    return "apart"


def preconditioned_by_one(rank: int, world_size: int, *, sign: float = 1.0) -> str:
    """The inverse of a matrix of inputs is worked out by one rank, which holds it by columns, and sent to rows: others get it
    transposed, the same but for rounding. `sign`: what the other ranks make of it."""
    model = DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    layer = model.module[2]
    for number, (inputs, targets) in enumerate(batches(rank, world_size), 1):
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        seen = model.module[:2](inputs).detach()
        factor = seen.t() @ seen
        dist.all_reduce(factor)
        inverse = torch.linalg.inv(factor + 0.3 * torch.eye(16)) if rank == 0 else torch.empty(16, 16)
        dist.broadcast(inverse, src=0)
        layer.weight.grad = layer.weight.grad @ inverse * (1.0 if rank == 0 else sign)  # type: ignore[operator,union-attr]
        optimizer.step()
        if number == STEPS:
            break
    return "apart"
