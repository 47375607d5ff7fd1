"""Healthy jobs in which rank 0 is busy with something else for long, at every place where jobs pause. Each ends in order.

torchrun --nproc-per-node 2 pauses.py PLACE SECONDS
"""

from __future__ import annotations

import io
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

SECONDS = float(sys.argv[2]) if len(sys.argv) > 2 else 20.0
RANK = int(os.environ.get("RANK", "0"))


def pause() -> None:
    """Only rank 0 does something else, in small parts."""
    if RANK == 0:
        time.sleep(SECONDS)


def train(model: nn.Module, batches: Any, optimizer: torch.optim.Optimizer | None = None) -> None:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), 0.01)
    for batch in batches:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()


def wrapped() -> DistributedDataParallel:
    torch.manual_seed(0)
    return DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)))


def batches(count: int = 4) -> list[Tensor]:
    return [torch.ones(2, 4) for _ in range(count)]


class Slow(Dataset[Tensor]):
    """The third sample takes long on rank 0."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Tensor:
        if index == 2:
            pause()
        return torch.full((4,), float(index))


def loader(workers: int = 0) -> DataLoader[Tensor]:
    data = Slow()
    return DataLoader(data, batch_size=2, num_workers=workers, sampler=DistributedSampler(data, shuffle=False))


class Stream(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        for number in range(6):
            if number == 2:
                pause()
            yield torch.full((4,), float(2 * number + RANK))


class SlowFile(io.BytesIO):
    """A disk or network file that takes long for its first bytes."""

    waited = False

    def write(self, data: Any) -> int:
        if not self.waited:
            self.waited = True
            pause()
        return super().write(data)


def before_barrier() -> None:
    pause()
    dist.barrier()


def before_broadcast_object() -> None:
    things: list[Any] = [{"lr": 0.1} if RANK == 0 else None]
    pause()
    dist.broadcast_object_list(things, src=0)


def before_all_reduce() -> None:
    pause()
    dist.all_reduce(torch.ones(4))


def before_send() -> None:
    if RANK == 0:
        pause()
        dist.send(torch.ones(2), 1)
    else:
        dist.recv(torch.ones(2), 0)


def before_handle() -> None:
    pause()
    work = dist.all_reduce(torch.ones(4), async_op=True)
    work.wait()


def in_loader() -> None:
    train(wrapped(), loader())


def in_worker() -> None:
    train(wrapped(), loader(workers=2))


def in_stream() -> None:
    train(wrapped(), DataLoader(Stream(), batch_size=2))


def while_saving() -> None:
    model = wrapped()
    train(model, batches())
    if RANK == 0:
        torch.save(model.state_dict(), SlowFile())
    dist.barrier()
    train(model, batches())


def while_loading() -> None:
    model = wrapped()
    if RANK == 0:
        file = io.BytesIO()
        torch.save(model.module.state_dict(), file)
        file.seek(0)
        pause()
        model.module.load_state_dict(torch.load(file))
    dist.barrier()
    train(model, batches())


def while_evaluating() -> None:
    model = wrapped()
    train(model, batches())
    if RANK == 0:
        model.eval()
        with torch.no_grad():
            for batch in batches(10):
                model.module(batch)
                time.sleep(SECONDS / 10)
        model.train()
    train(model, batches())


def while_compiling() -> None:
    def backend(graph: Any, inputs: Any) -> Callable[..., Any]:
        pause()
        return graph.forward  # type: ignore[no-any-return]

    train(torch.compile(wrapped(), backend=backend), batches())  # type: ignore[arg-type]


def in_first_step() -> None:
    model = wrapped()
    model.module[1].register_forward_pre_hook(lambda *_: pause() if not hasattr(model, "warm") else None)
    train(model, batches(1))
    model.warm = True  # type: ignore[assignment]
    train(model, batches())


def while_stopped() -> None:
    if RANK == 0:
        wake = f"sleep {SECONDS}; kill -CONT {os.getpid()}"
        subprocess.Popen(["sh", "-c", wake])
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.barrier()


def in_subprocess() -> None:
    if RANK == 0:
        subprocess.run(["sleep", str(SECONDS)], check=True)
    dist.barrier()


def in_network() -> None:
    """An upload whose other end takes its time."""
    if RANK == 0:
        mine, other = socket.socketpair()
        threading.Timer(SECONDS, other.sendall, [b"done"]).start()
        mine.recv(4)
    dist.barrier()


def in_lock() -> None:
    if RANK == 0:
        done = threading.Event()
        threading.Thread(target=lambda: (pause(), done.set())).start()
        done.wait()
    dist.barrier()


def in_python() -> None:
    until = time.monotonic() + SECONDS
    while RANK == 0 and time.monotonic() < until:
        sum(range(1000))
    dist.barrier()


def in_c() -> None:
    """Calls that keep the GIL, one after the other."""
    until = time.monotonic() + SECONDS
    while RANK == 0 and time.monotonic() < until:
        re.match(r"(a+)+$", "a" * 24 + "b")
    dist.barrier()


def in_tensors() -> None:
    until = time.monotonic() + SECONDS
    while RANK == 0 and time.monotonic() < until:
        torch.ones(600, 600) @ torch.ones(600, 600)
    dist.barrier()


def before_new_group() -> None:
    pause()
    dist.barrier(group=dist.new_group([0, 1]))


def before_wrapping() -> None:
    pause()
    train(wrapped(), batches())


def between_steps() -> None:
    """Once in a while rank 0 writes something, in a job whose steps are fast."""
    model = wrapped()
    for _ in range(30):
        train(model, batches(2))
    pause()
    train(model, batches())


def before_leaving() -> None:
    dist.barrier()
    pause()


def before_init() -> None:
    """See below: the pause comes before init_process_group."""


PLACES: dict[str, Callable[[], None]] = {
    place.__name__: place
    for place in (
        before_init, before_barrier, before_broadcast_object, before_all_reduce, before_send, before_handle, in_loader, in_worker,
        in_stream, while_saving, while_loading, while_evaluating, while_compiling, in_first_step, while_stopped, in_subprocess,
        in_network, in_lock, in_python, in_c, in_tensors, before_new_group, before_wrapping, between_steps, before_leaving,
    )
}  # fmt: skip


def main() -> None:
    place = sys.argv[1]
    if place == "before_init":
        pause()
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
    with tempfile.TemporaryDirectory():
        PLACES[place]()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
