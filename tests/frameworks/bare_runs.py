"""Jobs without the probe, forked where their framework is imported already: that takes each of their ranks a second of CPU."""

from __future__ import annotations

import contextlib
import gc
import importlib
import multiprocessing
import traceback
from multiprocessing.connection import Connection
from typing import Any

from both_ways import train_rank
from jobs import run_ranks, values
from jobs.fork_server import SERVER

# What its jobs import, by the first word of their names. All others need torch alone.
FRAMEWORKS = {"lightning": "lightning.pytorch.strategies", "accelerate": "accelerate", "trainer": "transformers"}


class BareRuns:
    """What the ranks of a job return without the probe. They never see what the probe's own runs import."""

    def __init__(self) -> None:
        self._hosts: dict[str, tuple[Any, Connection]] = {}

    def __call__(self, job: Any, ranks: int, place: str, port: int, timeout: float) -> list[Any]:
        framework = FRAMEWORKS.get(job.__name__.partition("_")[0], "torch")
        if framework not in self._hosts:
            ours, its = SERVER.Pipe()
            process = SERVER.Process(target=_host, args=(its, framework))
            process.start()
            its.close()
            self._hosts[framework] = (process, ours)
        line = self._hosts[framework][1]
        line.send((job, ranks, place, port, timeout))
        found = line.recv()
        if isinstance(found, str):
            raise AssertionError(found)
        return list(found)

    def close(self) -> None:
        """Let the frameworks' processes end."""
        for process, line in self._hosts.values():
            line.close()
            process.join()
        self._hosts.clear()


def _host(line: Connection, framework: str) -> None:
    """One process for each framework, whose children are the ranks."""
    multiprocessing.set_start_method(None, force=True)
    importlib.import_module(framework)
    gc.collect()
    gc.freeze()
    with contextlib.suppress(EOFError):
        while True:
            job, ranks, place, port, timeout = line.recv()
            try:
                wanted = (train_rank, ranks, job, None, port, place, False)
                line.send(values(run_ranks(*wanted, timeout=timeout, join=False, forked_here=True)))
            except Exception:
                line.send(traceback.format_exc())
