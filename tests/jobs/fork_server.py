"""Real ranks for test suites, started within half a second: a fork server has imported torch once for all of them."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import pickle
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, cast

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    [
        "torch.distributed.fsdp",
        "torch.distributed.tensor.parallel",
        "torch.distributed.pipelining",
        "torch.distributed.checkpoint",
        # What frameworks spend their first seconds on, and what knows nothing of torch; passed over where it is not installed.
        "scipy.signal",
        "scipy.stats",
        "matplotlib.axes",
        "pandas",
        # A rank starts the probe, the server imports it only: that took half as long as a rank's training.
        "distdoctor.probe.start",
        "distdoctor.recording.trace.run_folder",
        "distdoctor.workloads.train",
        "distdoctor.workloads.result",
        "distdoctor.workloads.models.mlp",
        "distdoctor.workloads.data.digits",
        "all_set_aside",  # from tests/fewer_collections
    ]
)


@dataclass(frozen=True)
class RankResult:
    """How one rank ended: what it returned, or the traceback of what it raised."""

    rank: int
    exit_code: int | None
    """Negative: the signal that ended it. -9 also when the time limit was over, see `timed_out`."""
    value: Any = None
    error: str | None = None
    timed_out: bool = False


def run_ranks(
    target: Callable[..., Any],
    world_size: int,
    *args: Any,
    timeout: float = 60,
    join: bool = True,
    folder: str | None = None,
    at_timeout: Callable[[], None] | None = None,
    forked_here: bool = False,
) -> list[RankResult]:
    """Call `target(rank, world_size, *args)` in each of `world_size` new processes; all are gone when this returns.

    `target` is a function of a module, and what it returns can be pickled. RANK, WORLD_SIZE and LOCAL_RANK are set; with
    `join` the ranks have met over gloo and a file, without any port. With `folder` they are recorded there. After `timeout`
    seconds `at_timeout` is called, and what still runs is killed. `forked_here`: from this process and not from the server.
    """
    context = multiprocessing.get_context("fork") if forked_here else SERVER
    with tempfile.TemporaryDirectory() as scratch:
        store = str(Path(scratch) / "store") if join else None
        ranks = [_start(context, target, rank, world_size, store, folder, args) for rank in range(world_size)]
        try:
            return _collect(ranks, time.monotonic() + timeout, at_timeout)
        finally:
            for process, _ in ranks:
                if process.is_alive():
                    process.kill()
                process.join()


def values(results: list[RankResult]) -> list[Any]:
    """What each rank returned; fails with the first traceback unless all ended well."""
    for result in results:
        if result.timed_out:
            raise AssertionError(f"rank {result.rank} did not end in time")
    for result in results:
        if result.exit_code != 0:
            raise AssertionError(f"rank {result.rank} ended with {result.exit_code}\n{result.error or ''}")
    return [result.value for result in results]


def _start(
    context: Any,
    target: Callable[..., Any],
    rank: int,
    world_size: int,
    store: str | None,
    folder: str | None,
    args: tuple[Any, ...],
) -> tuple[Any, Connection]:
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_rank_main, args=(sender, target, rank, world_size, store, folder, args))
    process.start()
    sender.close()
    return process, receiver


def _collect(
    ranks: list[tuple[Any, Connection]], deadline: float, at_timeout: Callable[[], None] | None
) -> list[RankResult]:
    messages: dict[int, dict[str, Any]] = {}
    waiting: dict[Connection, int] = {receiver: rank for rank, (_, receiver) in enumerate(ranks)}
    while waiting and (left := deadline - time.monotonic()) > 0:
        for receiver in cast("list[Connection]", wait(list(waiting), timeout=left)):
            rank = waiting.pop(receiver)
            try:
                messages[rank] = pickle.loads(receiver.recv_bytes())
            except EOFError:  # it ended without a word
                messages[rank] = {}
    late = set(waiting.values())
    if late and at_timeout is not None:
        at_timeout()
    for rank, (process, _) in enumerate(ranks):
        process.join(timeout=0 if rank in late else max(0.1, deadline - time.monotonic()))
        if process.is_alive():
            late.add(rank)
            process.kill()
            process.join()
    return [
        RankResult(rank, process.exitcode, timed_out=rank in late, **messages.get(rank, {}))
        for rank, (process, _) in enumerate(ranks)
    ]


def _rank_main(
    sender: Connection,
    target: Callable[..., Any],
    rank: int,
    world_size: int,
    store: str | None,
    folder: str | None,
    args: tuple[Any, ...],
) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_RANK=str(rank))
    # As in a rank of torchrun. Left as it is, loader workers come from the server, which is then the parent that they watch:
    # those of a rank that was killed would wait for ever.
    multiprocessing.set_start_method(None, force=True)
    if folder is not None:
        importlib.import_module("distdoctor.probe.start").start(folder)
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    try:
        if store is not None:
            dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
        value = target(rank, world_size, *args)
        if store is not None and dist.is_initialized():
            dist.destroy_process_group()
        sender.send_bytes(pickle.dumps({"value": value}))
    except BaseException as error:
        sender.send_bytes(pickle.dumps({"error": traceback.format_exc()}))
        if folder is not None:
            importlib.import_module("distdoctor.probe.start").note_exception(error)
        sender.close()
        # Without the interpreter's own end: threads of a broken group must not keep this process from ending.
        sys.stdout.flush()
        code = error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1
        os._exit(code)
