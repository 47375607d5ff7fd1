"""Trainings that together call nearly everything of the probe; each returns a digest of all that it computes.

Each takes a second or less. `TRAININGS` has them by name, with the number of their ranks.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import hashlib
import io
import math
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist
import torch.utils.checkpoint
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler, TensorDataset

from jobs.probe_bug_data import Held, Numbers, data, frameworks, spawning
from jobs.probe_bug_messages import messages, older_torch
from jobs.probe_bug_models import compiled
from jobs.probe_bug_steps import digest, steps


def alone(rank: int, world_size: int, folder: str) -> str:
    """A little of everything that the probe looks at. A digest of all that it computes."""
    torch.manual_seed(0)
    seen = hashlib.sha256()
    data = TensorDataset(torch.randn(48, 16), torch.randn(48, 4))
    sampler = DistributedSampler(data)  # type: ignore[var-annotated]
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    layers = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Dropout(), nn.Linear(16, 4))
    model = DistributedDataParallel(layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5)
    group = dist.new_group([0])
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for step, (x, y) in enumerate(loader):
            with torch.autocast("cpu", enabled=step % 4 == 0):
                loss = nn.functional.mse_loss(model(x).float(), y)
            if step % 3 == 2:
                with model.no_sync():
                    loss.backward()
                continue
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            total = loss.detach().clone()
            dist.all_reduce(total, group=group)
            handle = dist.all_reduce(total, async_op=True)
            handle.wait()
            seen.update(str(total.item()).encode())
        schedule.step()
        model.eval()
        with torch.no_grad():
            seen.update(str(model(data.tensors[0]).sum().item()).encode())
        model.train()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, f"{folder}/saved.pt")
        state = torch.load(f"{folder}/saved.pt")
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    dist.barrier()
    for parameter in model.parameters():
        seen.update(parameter.detach().numpy().tobytes())
    return seen.hexdigest()


class Branched(nn.Module):
    """A part that is recomputed, one that takes part now and then, and buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(16, 16), nn.BatchNorm1d(16)
        self.seldom, self.head = nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor, *, seldom: bool = False) -> torch.Tensor:
        x = torch.utils.checkpoint.checkpoint(
            lambda one: torch.relu(self.first(one)), self.norm(x), use_reentrant=False
        )
        return self.head(self.seldom(x) if seldom else x)  # type: ignore[no-any-return]


def together(rank: int, world_size: int, folder: str) -> str:
    """What only several ranks do, or few trainings: streams, workers, a scaler that skips, gathers, copies of the model."""
    torch.manual_seed(0)
    seen = hashlib.sha256()
    model = Branched()
    average = copy.deepcopy(model)
    wrapped = DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.01, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4)
    torch.manual_seed(rank)
    held = Held()
    batches = BatchSampler(DistributedSampler(held), 5, drop_last=False)
    for epoch, loader in enumerate(
        (
            DataLoader(held, batch_sampler=batches, num_workers=1),
            DataLoader(Numbers(), batch_size=4, num_workers=1),
            DataLoader(Numbers(), batch_size=4),
            DataLoader(held, batch_size=4, sampler=RandomSampler(held)),
        )
    ):
        for step, batch in enumerate(loader):
            x = batch["x"] if isinstance(batch, dict) else batch[0]
            out = wrapped(x, seldom=step % 2 == 1)
            parts = [torch.zeros_like(out) for _ in range(world_size)]
            dist.all_gather(parts, out.detach())
            loss = (out - torch.stack(parts).mean(0)).square().mean() + out.square().mean()
            loss = loss * math.inf if (epoch, step) == (0, 3) else loss
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(wrapped.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            wrapped.zero_grad()
            with torch.no_grad():
                for mine, theirs in zip(average.parameters(), model.parameters(), strict=True):
                    mine.lerp_(theirs, 0.1)
            seen.update(str(loss.item()).encode())
        wrapped.eval()
        seen.update(str(wrapped(held.array).sum().item()).encode())  # an evaluation that forgot no_grad
        wrapped.train()
    x = held.array[:4].requires_grad_()
    (slope,) = torch.autograd.grad(model.double()(x.double()).sum(), x)
    seen.update(slope.numpy().tobytes())
    uneven = DistributedDataParallel(nn.Linear(16, 4))
    with Join([uneven]):
        for _ in range(2 + rank):
            uneven(held.array[:4].detach()).sum().backward()
    dist.monitored_barrier()
    again = pickle.loads(pickle.dumps(model))
    for parameter in (*again.parameters(), *average.parameters()):
        seen.update(parameter.detach().numpy().tobytes())
    return seen.hexdigest()


class Averages:
    """The model's weights by name, as hand-written averages are kept."""

    def __init__(self, model: nn.Module) -> None:
        self.shadow = {name: one.detach().clone() for name, one in model.named_parameters()}


def kept(rank: int, world_size: int, folder: str) -> str:
    """What is kept beside the model: averages by name, weights that are broadcast, all outputs of an evaluation."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 64), nn.Linear(64, 4)))
    averages, weights = Averages(model.module), nn.utils.parameters_to_vector(model.parameters()).detach()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = torch.randn(24, 16)
    losses: list[Any] = []
    for _ in range(5):
        losses += steps(model, optimizer, 1, rows[:4])
        for name, one in model.module.named_parameters():
            averages.shadow[name].lerp_(one.detach(), 0.1)
        dist.broadcast(weights, 0)
    for _ in range(2):
        model.eval()
        with torch.no_grad():
            outputs = [model(batch).repeat(1, 1 << 18) for (batch,) in DataLoader(TensorDataset(rows))]
        model.train()
        losses += [float(outputs[-1].sum()), *steps(model, optimizer, 1, rows[:4])]
    return digest(*losses, *model.parameters(), *averages.shadow.values(), weights)


def sharded(rank: int, world_size: int, folder: str) -> str:
    """FSDP of both kinds, ZeRO, and distributed checkpoints, asynchronous ones among them."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_model_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from torch.distributed.optim import ZeroRedundancyOptimizer

    torch.manual_seed(0)
    x = torch.randn(4, 16)
    mesh = init_device_mesh("cpu", (world_size,), mesh_dim_names=("dp",))
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses: list[Any] = steps(model, optimizer, 4, x)
    losses.append(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
    dcp.save(get_model_state_dict(model), checkpoint_id=f"{os.path.dirname(folder)}/dcp")
    dcp.async_save(get_model_state_dict(model), checkpoint_id=f"{os.path.dirname(folder)}/dcp-async").result()
    state = get_model_state_dict(model)
    dcp.load(state, checkpoint_id=f"{os.path.dirname(folder)}/dcp")
    older = FullyShardedDataParallel(nn.Linear(16, 16), device_id=torch.device("cpu"), use_orig_params=True)
    losses += steps(older, torch.optim.SGD(older.parameters(), lr=0.1), 3, x)
    zero_model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 8), nn.Linear(8, 4)))
    zero = ZeroRedundancyOptimizer(zero_model.parameters(), torch.optim.Adam, lr=0.01)
    losses += steps(zero_model, zero, 3, x)
    zero.consolidate_state_dict(0)
    return digest(*losses, *model.parameters(), *older.parameters(), *zero_model.parameters())


def growing(rank: int, world_size: int, folder: str) -> str:
    """A training whose memory grows: losses and outputs that are kept, evaluations that record, modules within modules."""
    torch.manual_seed(0)
    model = Branched()
    history: dict[str, Any] = {"losses": [], "total": torch.zeros(())}
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    held = Held()
    cache = [torch.randn(64, 64)]
    total: Any = 0.0
    for step in range(26):
        out = model(held.array[:8])
        loss = out.square().mean()
        total = total + loss
        history["losses"].append(loss)
        cache.append(torch.randn(64, 64))
        optimizer.zero_grad()
        loss.backward(retain_graph=step % 5 == 0)
        optimizer.step()
        if step % 6 == 5:
            gc.collect()
            model.eval()
            kept = [model(held.array[8:16]) for _ in range(2)]
            history["seen"] = kept
            model.train()
        if step in (13, 19):
            model.eval()
            kept = [model(batch[0]) for batch in DataLoader(TensorDataset(held.array), batch_size=4)]
            history["batches"] = kept
            model.train()
    slope = torch.autograd.grad(model(held.array[:2].requires_grad_()).sum(), model.head.weight)
    return digest(total, *history["losses"], *slope, *model.parameters())


def checkpoints(rank: int, world_size: int, folder: str) -> str:
    """Everything that is saved and loaded: buffers, renamed files, pointers, safetensors, in a thread, and what fails."""
    import threading

    from safetensors.torch import load_file, save_file

    torch.manual_seed(0)
    found: list[Any] = []
    model = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    scaler = torch.amp.GradScaler("cpu")
    x = torch.randn(8, 16)
    for step in range(3):
        found += steps(model, optimizer, 2, x)
        schedule.step()
        torch.save({name: one.clone() for name, one in model.state_dict().items()}, f"{folder}/copies.pt")
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step,
                 "schedule": schedule.state_dict(), "scaler": scaler.state_dict()}  # fmt: skip
        torch.save(state, f"{folder}/draft.pt")
        os.replace(f"{folder}/draft.pt", f"{folder}/step-{step}.pt")
        with open(f"{folder}/latest", "w") as file:
            file.write(f"step-{step}.pt")
        saving = threading.Thread(target=torch.save, args=(state, f"{folder}/thread-{step}.pt"))
        saving.start()
        saving.join()
        save_file(model.state_dict(), f"{folder}/step-{step}.safetensors")
        buffer = io.BytesIO()
        torch.save(model.state_dict(), buffer)
        found.append(len(buffer.getvalue()))
    with contextlib.suppress(Exception):
        torch.save(lambda: None, f"{folder}/never.pt")
    with contextlib.suppress(Exception):
        torch.load(f"{folder}/never.pt")
    state = torch.load(f"{folder}/step-1.pt", map_location="cpu")
    found.append(str(model.load_state_dict(state["model"])))
    optimizer.load_state_dict(state["optimizer"])
    schedule.load_state_dict(state["schedule"])
    scaler.load_state_dict(state["scaler"])
    with contextlib.suppress(RuntimeError):
        model.load_state_dict({"module.0.weight": torch.zeros(16, 16)})
    found.append(str(model.load_state_dict({"0.weight": torch.ones(16, 16)}, strict=False)))
    model.load_state_dict(load_file(f"{folder}/step-2.safetensors"))
    found += steps(model, optimizer, 2, x)
    return digest(*found, *model.parameters())


def watched(rank: int, world_size: int, folder: str) -> str:
    """Replicas that nobody wraps, which the program names itself, and looks at phases of its own."""
    import distdoctor

    torch.manual_seed(0)
    model = nn.Linear(16, 4)
    watch = distdoctor.watch(model) if "distdoctor.probe.seam" in sys.modules else None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found: list[Any] = []
    for _ in range(5):
        loss = model(torch.ones(4, 16)).square().mean()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    start = sys.modules.get("distdoctor.probe.start")
    if start is not None:
        begins, ends = start.phase_marks()
        begins("evaluation")
        ends("evaluation")
        start.recorded_in()
        start.destination()
    del watch
    return digest(*found, *model.parameters())


def signalled(rank: int, world_size: int, folder: str) -> str:
    """A handler that issues collectives of its own, threads, and an exit by SystemExit out of a handler."""
    torch.manual_seed(0)
    found: list[Any] = []

    def asks(*_: Any) -> None:
        word = torch.ones(1)
        dist.all_reduce(word)
        found.append(word)

    signal.signal(signal.SIGUSR1, asks)
    model = DistributedDataParallel(nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        found += steps(model, optimizer, 1, torch.ones(4, 16))
        if step == 1:
            os.kill(os.getpid(), signal.SIGUSR1)
        child = os.fork()  # a helper of the program's own
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    return digest(*found, *model.parameters())


def failing(rank: int, world_size: int, folder: str) -> str:
    """A training that will end with an exception: see `ENDS`."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(16, 4))
    losses = steps(model, torch.optim.SGD(model.parameters(), lr=0.1), 3, torch.ones(4, 16))
    return digest(*losses, *model.parameters())


def caught(rank: int, world_size: int, folder: str) -> str:
    """Errors that the program lives with: of a thread, of a task, and one that is being handled while it issues a collective."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found: list[Any] = []
    for number in range(3):
        reader = threading.Thread(target=_fails, args=(rank,), name="reader")
        reader.start()
        reader.join()
        with ThreadPoolExecutor(1) as pool:
            found.append(str(pool.submit(_fails, rank).exception()))
        try:
            _fails(rank)
        except ValueError:
            word = torch.full((4,), float(number))
            dist.all_reduce(word)
            dist.all_reduce(word)
            found.append(word)
        found += steps(model, optimizer, 1, torch.ones(4, 16))
    return digest(*found, *model.parameters())


def _fails(rank: int) -> None:
    raise ValueError(f"cannot read the shard of rank {rank}")


def _out_of_memory() -> None:
    torch.empty(1 << 52)


def _terminated() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


Training = Callable[[int, int, str], str]
TRAININGS: dict[str, tuple[Training, int]] = {
    "alone": (alone, 1),
    "together": (together, 2),
    "messages": (messages, 2),
    "compiled": (compiled, 2),
    "sharded": (sharded, 2),
    "data": (data, 2),
    "kept": (kept, 2),
    "growing": (growing, 1),
    "checkpoints": (checkpoints, 1),
    "watched": (watched, 2),
    "signalled": (signalled, 2),
    "failing": (failing, 2),
    "caught": (caught, 2),
    "older_torch": (older_torch, 2),
    "second": (failing, 1),
    "no_room": (failing, 1),
    "spawning": (spawning, 1),
    "frameworks": (frameworks, 1),
}
NUMBERED = frozenset(TRAININGS) - {"alone", "second", "watched"}  # whose start the launcher has numbered
# How some of them end, after all that they compute is known.
ENDS: dict[str, Callable[[], None]] = {"failing": _out_of_memory, "signalled": _terminated}
VARIABLES = {"older_torch": {"DISTDOCTOR_COLLECTIVES": "dispatcher"}}
DEEP = frozenset({"together", "growing", "compiled"})  # those that are looked at in every step
