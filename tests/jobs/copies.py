"""Copies kept beside the replicas: averages, target networks, acting policies. Ill ones, and their healthy twins."""

from __future__ import annotations

import copy
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from jobs.replicas import Batches, Net, adam, digest_of_training

STEPS = 8


def averaged(copied: nn.Module, trained: nn.Module) -> None:
    with torch.no_grad():
        for mine, other in zip(copied.parameters(), trained.parameters(), strict=True):
            mine.lerp_(other, 0.1)


def taught(rank: int, world_size: int, *, refreshes: tuple[int, ...] = (0, 1), learns: bool = True) -> str:
    """A teacher that is the moving average of the student, and whose answers the student learns."""
    model = DistributedDataParallel(Net())
    teacher = copy.deepcopy(model.module).requires_grad_(False)  # the copy
    optimizer, batches = adam(model), Batches(rank)
    for _ in range(STEPS):
        inputs, targets = batches.next()
        loss = cross_entropy(model(inputs), targets)
        if learns:
            loss = loss + mse_loss(model(inputs), teacher(inputs))  # its answers
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank in refreshes:
            averaged(teacher, model.module)
    return digest_of_training(model)


def evaluated(rank: int, world_size: int, *, refreshes: tuple[int, ...] = (0, 1), gives: bool = False) -> str:
    """An average inside an object of the user's own, which every rank evaluates when an epoch is over; `gives`: after rank 0 has
    given the others its own."""
    net = Net()
    kept = {"average": copy.deepcopy(net).eval().requires_grad_(False)}  # the copy
    model = DistributedDataParallel(net)
    optimizer, batches = adam(model), Batches(rank)
    rows = torch.randn(16, 20, generator=torch.Generator().manual_seed(rank))
    for _epoch in range(3):
        for _ in range(STEPS):
            inputs, targets = batches.next()
            optimizer.zero_grad()
            cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            if rank in refreshes:
                averaged(kept["average"], model.module)
        for parameter in kept["average"].parameters() if gives else ():
            dist.broadcast(parameter, src=0)
        with torch.no_grad():
            for inputs in DataLoader(rows, 8):
                kept["average"](inputs)  # evaluates
    return digest_of_training(model)


def targeted(rank: int, world_size: int, *, each: tuple[int, int] = (2, 2)) -> str:
    """A target network that is loaded from the trained one now and then, as each rank counts."""
    model, target = DistributedDataParallel(Net()), Net()
    target.load_state_dict(model.module.state_dict())
    optimizer, batches = adam(model), Batches(rank)
    for step in range(STEPS):
        inputs, _ = batches.next()
        with torch.no_grad():
            wanted = target(inputs)  # bootstraps
        optimizer.zero_grad()
        mse_loss(model(inputs), wanted + 1).backward()
        optimizer.step()
        if step % each[rank] == 0:
            target.load_state_dict(model.module.state_dict())
    return digest_of_training(model)


def played_in_a_thread(rank: int, world_size: int, *, each: tuple[int, int] = (2, 2)) -> str:
    """An actor of its own thread plays with a copy when it likes: on one rank just before it is refreshed, on the other after."""
    model, acting = DistributedDataParallel(Net()), Net()
    acting.load_state_dict(model.module.state_dict())
    optimizer, batches = adam(model), Batches(rank)
    with ThreadPoolExecutor(1) as actor, torch.no_grad():
        for step in range(STEPS):
            inputs, targets = batches.next()
            optimizer.zero_grad()
            with torch.enable_grad():
                cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            if rank == 0:
                actor.submit(acting, inputs).result()  # plays
            if step % each[rank] == 0:
                acting.load_state_dict(model.module.state_dict())
            if rank == 1:
                actor.submit(acting, inputs).result()
    return digest_of_training(model)


class Player:
    """Plays with a copy that is given new weights by their names."""

    def __init__(self, net: nn.Module) -> None:
        self.net = copy.deepcopy(net).eval().requires_grad_(False)

    @torch.no_grad()
    def take(self, weights: dict[str, Tensor]) -> None:
        own = dict(self.net.named_parameters())
        for name, tensor in weights.items():
            if name not in own:  # of a head that does not play
                continue
            own[name].copy_(tensor)


def by_names(rank: int, world_size: int, *, of_the_wrapper: bool = True, each: int = 1) -> str:
    """A player whose weights are brought up to date by names, which are those of the wrapper."""
    net = Net()
    player, model = Player(net), DistributedDataParallel(net)
    optimizer, batches = adam(model), Batches(rank)
    for step in range(2 * STEPS):
        if step % each == 0:
            player.take(model.state_dict() if of_the_wrapper else model.module.state_dict())
        inputs, targets = batches.next()
        with torch.no_grad():
            player.net(inputs)
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    return digest_of_training(model)


def never_taken(rank: int, world_size: int) -> str:
    """A player that stays what it was, though larger jobs bring it up to date."""
    net = Net()
    player, model = Player(net), DistributedDataParallel(net)
    optimizer, batches = adam(model), Batches(rank)
    for _ in range(2 * STEPS):
        if world_size > 2:
            player.take(model.module.state_dict())
        inputs, targets = batches.next()
        with torch.no_grad():
            player.net(inputs)
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    return digest_of_training(model)


def in_a_dictionary(rank: int, world_size: int, *, each: tuple[int, int] = (3, 3), noise: tuple[float, float] = (0, 0),
                    anew: int = 1, early: bool | None = None) -> str:  # fmt: skip
    """A target that is no module but a dictionary of tensors. `noise`: what each rank adds of its own, in each `anew`th step.
    `early`: an average, taken before the wrapper makes the replicas equal, or behind it."""
    torch.manual_seed(rank if early is not None else 0)
    net = Net()
    target = {name: one.detach().clone() for name, one in net.state_dict().items()}
    model = DistributedDataParallel(net)
    if not early:
        target = {name: one.detach().clone() for name, one in model.module.state_dict().items()}
    optimizer, batches = adam(model), Batches(rank)
    own = torch.Generator().manual_seed(rank)
    for step in range(16):
        inputs, _ = batches.next()
        if any(noise) and step % anew == 0:
            state, scale = model.module.state_dict(), noise[rank]
            target = {name: one + scale * torch.randn(one.shape, generator=own) for name, one in state.items()}
        with torch.no_grad():
            wanted = torch.func.functional_call(model.module, target, (inputs,))  # bootstraps from it
        optimizer.zero_grad()
        mse_loss(model(inputs), 0.9 * wanted + 1).backward()
        optimizer.step()
        if early is not None:
            for name, one in model.module.state_dict().items():
                target[name].lerp_(one, 0.1)
        elif step % each[rank] == 0 and not any(noise):
            target = {name: one.detach().clone() for name, one in model.module.state_dict().items()}
    return digest_of_training(model)


class Averages:
    """What hand-written moving averages look like: no module, tensors by name."""

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self.shadow: dict[str, Tensor] = {}

    def register(self, module: nn.Module) -> None:
        self.shadow = OrderedDict((name, value.clone()) for name, value in module.state_dict().items())

    @torch.no_grad()
    def update(self, module: nn.Module) -> None:
        for name, parameter in module.named_parameters():
            if parameter.requires_grad and name in self.shadow:  # names that it has
                self.shadow[name].mul_(self.decay).add_(parameter.data, alpha=1 - self.decay)


class Noted:
    """What else has the parameters' names and shapes: the weights that were best here, sums of squares, weights with a noise."""

    def __init__(self, model: nn.Module) -> None:
        self.best = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        self.squares = {name: torch.zeros_like(parameter) for name, parameter in model.named_parameters()}
        self.tried = [parameter.detach().clone() for parameter in model.parameters()]

    def look(self, model: nn.Module, rank: int, step: int) -> None:
        for (name, parameter), tried in zip(model.named_parameters(), self.tried, strict=True):
            self.squares[name] += parameter.grad.square() if parameter.grad is not None else 0
            tried.copy_(parameter.detach() + 0.01 * torch.randn(parameter.shape))
            if step % (3 + rank) == 0:
                self.best[name] = parameter.detach().clone()


def averaged_by_name(
    rank: int,
    world_size: int,
    *,
    of_the_wrapper: bool = False,
    early: bool = False,
    each: tuple[int, int] = (1, 1),
    beside: bool = False,
) -> str:
    """`early`: it is begun before DistributedDataParallel makes the replicas equal."""
    torch.manual_seed(rank if early else 0)
    net = Net()
    averages = Averages(0.9)  # the averages
    if early:
        averages.register(net)
    model = DistributedDataParallel(net)
    if not early:
        averages.register(net)
    noted = Noted(net) if beside else None
    optimizer, batches = adam(model), Batches(rank)
    torch.manual_seed(rank)
    for step in range(3 * STEPS):
        inputs, targets = batches.next()
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        if step % each[rank] == 0:  # now and then
            averages.update(model if of_the_wrapper else net)
        if noted is not None:
            noted.look(net, rank, step)
    return digest_of_training(model)


def sent_to_players(rank: int, world_size: int, *, anew: bool = False, constants: bool = False) -> str:
    """Rank 0 learns, the other plays with the weights that it is sent; `constants`: it is sent what does not change, too."""
    net = Net()
    weights = torch.nn.utils.parameters_to_vector(net.parameters()).detach()  # as they are now
    table, batches = torch.randn(100, generator=torch.Generator().manual_seed(1)), Batches(rank)
    optimizer = adam(net) if rank == 0 else None
    for _ in range(3 * STEPS):
        if anew:
            weights.copy_(torch.nn.utils.parameters_to_vector(net.parameters()).detach())
        dist.broadcast(weights, 0)
        if constants:
            dist.broadcast(table, 0)
        if optimizer is None:
            torch.nn.utils.vector_to_parameters(weights, net.parameters())
        inputs, targets = batches.next()
        if optimizer is not None:
            optimizer.zero_grad()
            cross_entropy(net(inputs), targets).backward()
            optimizer.step()
    return digest_of_training(net)


def pushed(rank: int, world_size: int, *, renewed: bool = False, each: int = 1) -> str:
    """An actor that gets the learner's weights anew all the time: from a snapshot, which is renewed or is not."""
    model, actor = DistributedDataParallel(Net()), Net()
    snapshot = {name: value.clone() for name, value in model.module.state_dict().items()}
    optimizer, batches = adam(model), Batches(rank)
    for step in range(STEPS):
        if renewed:
            snapshot = model.module.state_dict()
        if step % each == 0:
            actor.load_state_dict(snapshot)  # what it has
        inputs, _ = batches.next()
        with torch.no_grad():
            wanted = actor(inputs)  # acts
        optimizer.zero_grad()
        mse_loss(model(inputs), wanted + 1).backward()
        optimizer.step()
    return digest_of_training(model)


def taken_early(rank: int, world_size: int, *, after_wrapping: bool = False) -> str:
    """An average for evaluation, taken before the wrapper makes the replicas equal."""
    torch.manual_seed(rank)
    net = Net()
    early = copy.deepcopy(net)  # before
    model = DistributedDataParallel(net)
    average = copy.deepcopy(model.module) if after_wrapping else early
    optimizer, batches = adam(model), Batches(rank)
    for _ in range(STEPS):
        inputs, targets = batches.next()
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        averaged(average, model.module)
    return digest_of_training(model)


class Agent(nn.Module):
    """What learns and what it is compared with, under one roof; only the first is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.online = Net()
        self.target = copy.deepcopy(self.online).requires_grad_(False)

    def forward(self, inputs: Any) -> Any:
        return self.online(inputs), self.target(inputs)


def under_one_roof(rank: int, world_size: int) -> str:
    model = DistributedDataParallel(Agent())
    optimizer, batches = adam(model), Batches(rank)
    for _ in range(STEPS):
        inputs, _ = batches.next()
        optimizer.zero_grad()
        mse_loss(*model(inputs)).backward()
        optimizer.step()
        averaged(model.module.target, model.module.online)
    return digest_of_training(model)


def one_of_two(rank: int, world_size: int) -> str:
    """Two networks of one shape, each with an optimizer of its own: neither is a copy of the other."""
    model, other = DistributedDataParallel(Net()), Net()
    torch.nn.init.normal_(other.head.weight, std=0.1 * (rank + 1))
    optimizer, own, batches = adam(model), adam(other), Batches(rank)
    for _ in range(STEPS):
        inputs, targets = batches.next()
        for network, steps in ((model, optimizer), (other, own)):
            steps.zero_grad()
            cross_entropy(network(inputs), targets).backward()
            steps.step()
    return digest_of_training(model)


def taught_by_another(rank: int, world_size: int, *, alike: bool = False, begins_late: bool = False) -> str:
    """A larger teacher that was never trained; `begins_late`: one that an optimizer of its own trains behind the first steps."""
    torch.manual_seed(0 if alike else rank)
    teacher = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 10))
    torch.manual_seed(0)
    model, trains = DistributedDataParallel(Net()), adam(teacher)
    optimizer, batches = adam(model), Batches(rank)
    for step in range(STEPS):
        inputs, targets = batches.next()
        with torch.no_grad():
            aim = teacher(inputs)  # another aim
        optimizer.zero_grad()
        mse_loss(model(inputs), aim).backward()
        optimizer.step()
        if begins_late and step > 3:
            trains.zero_grad()
            cross_entropy(teacher(inputs), targets).backward()
            trains.step()
    return digest_of_training(model)


def evaluated_between(rank: int, world_size: int, *, by: tuple[int, ...] = (0, 1), trains_again: bool = False) -> str:
    """Dropout, and an evaluation in the midst of training, on some ranks; `trains_again`: train() is called behind it."""
    torch.manual_seed(0)
    model, batches = DistributedDataParallel(Net(dropout=0.1)), Batches(rank)
    optimizer = adam(model)
    for step in range(STEPS):
        inputs, targets = batches.next()
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        if step == 2 and rank in by:
            model.eval()  # for a look
            with torch.no_grad():
                model.module(inputs)
            if trains_again:
                model.train()
    return digest_of_training(model)


def frozen_layers(rank: int, world_size: int) -> str:
    """Batch normalization that is frozen in eval mode from some step on, as in the end of many fine-tunings."""
    model, batches = DistributedDataParallel(Net(norm=True, dropout=0.1)), Batches(rank)
    optimizer = adam(model)
    for step in range(STEPS):
        if step == 3:
            model.module.norm.eval()
        inputs, targets = batches.next()
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    return digest_of_training(model)


def actor_and_critic(rank: int, world_size: int, *, apart: bool = False, by_one: bool = False) -> str:
    """Two networks whose layers have the same names, and whose gradients travel in one piece; with statistics in each of them."""
    actor, critic = Net(norm=apart), Net(norm=apart)
    optimizers, batches = [adam(actor), adam(critic)], Batches(rank)
    if by_one:
        optimizers = [torch.optim.AdamW([*actor.parameters(), *critic.parameters()], lr=1e-2)]
    held = [*actor.parameters(), *critic.parameters()]
    for _ in range(STEPS):
        inputs, targets = batches.next()
        for optimizer in optimizers:
            optimizer.zero_grad()
        (cross_entropy(actor(inputs), targets) + cross_entropy(critic(inputs), targets)).backward()
        flat = torch.cat([p.grad.reshape(-1) for p in held if p.grad is not None])
        dist.all_reduce(flat)
        at = 0
        for parameter in held:
            assert parameter.grad is not None
            parameter.grad.copy_((flat[at : at + parameter.numel()] / world_size).view_as(parameter))
            at += parameter.numel()
        for optimizer in optimizers:
            optimizer.step()
    return digest_of_training(actor)


class Holding(nn.Module):
    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.value = nn.Parameter(value, requires_grad=False)


def beside_odd_modules(rank: int, world_size: int) -> str:
    """Modules beside the trained one that have no shape yet, no values, or other forms of tensors."""
    odd: list[nn.Module] = [nn.Sequential(nn.LazyLinear(4))]
    with torch.device("meta"):
        odd.append(nn.Linear(8, 8))
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    odd += [Holding(torch.eye(8).to_sparse()), Holding(nested), Holding(torch.ones(2, dtype=torch.complex64))]
    model, batches = DistributedDataParallel(Net()), Batches(rank)
    optimizer = adam(model)
    for _ in range(STEPS):
        inputs, targets = batches.next()
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    assert len(odd) == 5
    return digest_of_training(model)
