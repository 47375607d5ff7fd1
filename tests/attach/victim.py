"""A two-rank gloo job in which something goes wrong: `python victim.py MODE`. Prints `ready` when it is about to happen."""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import socket
import sys
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

MODE = sys.argv[1]
ODD = 1


class Slow(Dataset[int]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> int:
        if MODE == "loader" and index >= 8 and os.environ["RANK"] == str(ODD):
            time.sleep(600)
        return index


def say(word: str) -> None:
    os.write(1, f"{word}\n".encode())


def reduce(x: torch.Tensor) -> None:
    dist.all_reduce(x)


def never_free() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def match_for_ever() -> None:
    re.match(r"(a+)+$", "a" * 64 + "b")


def read_pipe() -> None:
    os.mkfifo("fifo")
    say("ready")
    with open("fifo") as pipe:
        pipe.read()


def take_file_lock() -> None:
    while not os.path.exists("taken"):
        time.sleep(0.01)
    say("ready")
    with open("cache.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)


def ask_somebody() -> None:
    os.dup2(os.pipe()[0], 0)  # a terminal at which nobody sits
    say("ready")
    breakpoint()
    say("go on")


def take_both() -> None:
    loss_lock, log_lock, taken = threading.Lock(), threading.Lock(), threading.Event()

    def write_log() -> None:
        with log_lock:
            taken.set()
            time.sleep(0.2)
            with loss_lock:
                say("never")

    threading.Thread(target=write_log, name="writer", daemon=True).start()
    with loss_lock:
        taken.wait()
        say("ready")
        with log_lock:
            say("never")


def wait_for_something(rank: int) -> None:
    """Each rank for something else; the file lock of rank 2 is held by rank 0, which waits for all of them."""
    if rank == 0:
        fcntl.flock(os.open("cache.lock", os.O_CREAT | os.O_WRONLY), fcntl.LOCK_EX)
        os.mkdir("taken")
        say("ready")
    else:
        (read_pipe, take_file_lock, ask_somebody, take_both)[rank - 1]()


def misbehave(x: torch.Tensor) -> None:
    say("ready")
    if MODE == "sleep":
        time.sleep(600)
    elif MODE == "lock":
        never_free()
    elif MODE == "regex":
        match_for_ever()
    elif MODE == "apart":
        dist.barrier()
    elif MODE == "stop":
        while True:
            time.sleep(0.01)


def train(rank: int) -> None:
    x = torch.ones(8)
    batches = iter(DataLoader(Slow(), batch_size=4, num_workers=2 if MODE == "loader" else 0))
    for step in range(10**9):
        if MODE == "loader":
            if step == 1:
                say("ready")
            next(batches)
        if MODE == "healthy":
            if step == 3:
                say("ready")
            time.sleep(0.05)
        elif MODE == "obstacles" and step == 3:
            wait_for_something(rank)
        elif step == 3 and rank == ODD:
            misbehave(x)
        elif step == 3:
            say("ready")
        if MODE == "apart_by_value" and step == 3 and torch.initial_seed() == ODD:  # each rank has a seed of its own
            dist.barrier()
        if MODE == "groups" and step == 3:
            if rank == ODD:
                dist.new_group([ODD])
                say("ready")
            dist.new_group()  # of all
        if MODE == "cycle" and step == 3:
            if rank == ODD:
                say("ready")
            dist.recv(x, src=1 - rank)
        reduce(x)


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def undumpable() -> None:
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE


def main(rank: int, world: int = 2) -> None:
    if MODE == "init" and rank == ODD:
        say("ready")
        time.sleep(600)
    if MODE == "init":
        say("ready")
    torch.manual_seed(rank)
    dist.init_process_group("gloo", rank=rank, world_size=world, timeout=timedelta(minutes=10))
    if MODE == "undumpable":
        undumpable()
    train(rank)


if __name__ == "__main__":
    if MODE == "spawn":
        import torch.multiprocessing as mp

        sys.argv[1] = "sleep"  # what the children import this file with
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port())
        mp.spawn(main, nprocs=2)
    else:
        main(int(os.environ.get("RANK") or os.environ["SLURM_PROCID"]), int(os.environ.get("WORLD_SIZE", "2")))
