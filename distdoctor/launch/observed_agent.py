"""Torch's own elastic agent, run in this process and observed: which ranks it started, and when it is about to end them."""

from __future__ import annotations

import argparse
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from distdoctor.errors import DoctorError
from distdoctor.launch.environment import environment
from distdoctor.launch.rendezvous import Rendezvous

DEFAULT_PORT = 29500  # of torchrun's parser before torch 2.14, which then has none


class AgentObserver(Protocol):
    """Who is told what the agent does. The methods are called in the agent's thread and must be quick."""

    def starting(self, attempt: int) -> Mapping[str, str]:
        """Ranks are about to be started (or restarted); variables that all of them get. `attempt` numbers this start, alike on
        all hosts: torch's own TORCHELASTIC_RESTART_COUNT counts what *this* host's ranks caused (pytorch#108158)."""

    def started(
        self, attempt: int, pids: dict[int, int], world_size: int, exit_code_of: Callable[[int], int | None]
    ) -> None:
        """Ranks were started: global rank -> pid.
        `exit_code_of(rank)` is what their parent knows later: the exit code, or minus the signal."""

    def closing(self) -> None:
        """The agent is about to end the ranks that still run."""


class LaunchFailed(DoctorError):
    """Torch's agent could not start the ranks: rendezvous, a port, a program that is not there."""

    exit_code = 1


@dataclass(frozen=True)
class AgentEnd:
    """How the agent came back: the exit code that torchrun would have, and the signal that interrupted it (0: none).

    `trouble`: what ended the agent itself after its ranks had started: the store or the link to the other hosts is gone.
    """

    exit_code: int
    signal: int = 0
    trouble: str = ""


def run_agent(arguments: argparse.Namespace, observer: AgentObserver, rendezvous: Rendezvous) -> AgentEnd:
    """Run the job that torchrun's parsed arguments describe; come back when it is over.

    Must be called in the main thread: the agent handles SIGINT and SIGTERM and passes them to the ranks.
    LaunchFailed: the ranks could not be started. What goes wrong once they were is an end of the job, with its recording.
    """
    from torch.distributed import run as torchrun
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, record

    _avoid_a_taken_port(arguments)
    before = {
        number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
    }
    try:
        with rendezvous.watched(), _observed(observer, rendezvous), _without_the_agents_verdict():
            # `record` hands the first rank's error file on, where someone above (a scheduler) asked for it.
            record(torchrun.run)(arguments)
    except ChildFailedError:
        return AgentEnd(1)
    except SignalException as stop:
        return AgentEnd(1, int(stop.sigval))
    except KeyboardInterrupt:
        return AgentEnd(1, int(signal.SIGINT))
    except Exception as trouble:
        if rendezvous.store is not None:
            return AgentEnd(1, trouble=f"{type(trouble).__name__}: {trouble}".rstrip(": "))
        who = f" ({rendezvous.who_waits})" if rendezvous.who_waits else ""
        raise LaunchFailed(
            f"torch could not start the job: {f'{type(trouble).__name__}: {trouble}'.rstrip(': ')}{who}",
            way_out="Try the same with --off (plain torchrun); on several nodes check --rdzv-endpoint from each of them.",
        ) from trouble
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return AgentEnd(0)


def _avoid_a_taken_port(arguments: argparse.Namespace) -> None:
    """Torch before 2.14 gives each job of one host the same port, which an earlier job of this process may still hold. Where it
    is taken and nobody has asked for it, the job gets a free one, as newer versions give it."""
    asked = arguments.rdzv_backend != "static" or arguments.rdzv_endpoint or arguments.master_port != DEFAULT_PORT
    if asked or arguments.standalone or str(arguments.nnodes) not in ("1", "1:1"):
        return
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", DEFAULT_PORT))
        except OSError:
            arguments.standalone = True


@contextlib.contextmanager
def _observed(observer: AgentObserver, rendezvous: Rendezvous) -> Iterator[None]:
    """Lay an ear on the base class of torch's process contexts (2.11-2.15): `start` and `close` are all that we need."""
    from torch.distributed.elastic.multiprocessing.api import PContext

    start, close = PContext.start, PContext.close

    def started(context: Any) -> None:
        attempt = rendezvous.attempt
        variables = observer.starting(attempt)
        for of_rank in context.envs.values():
            of_rank.update(variables)
        with environment(variables):  # with --run-path a rank loads torch before it gets what is its own
            start(context)
        ranks = {local: int(context.envs[local]["RANK"]) for local in context.pids()}
        local_ranks = {rank: local for local, rank in ranks.items()}
        world_size = max((int(env["WORLD_SIZE"]) for env in context.envs.values()), default=0)
        observer.started(
            attempt,
            {ranks[local]: pid for local, pid in context.pids().items()},
            world_size,
            lambda rank: _exit_code(context, local_ranks[rank]),
        )

    def closing(context: Any, *args: Any, **kwargs: Any) -> None:
        observer.closing()
        close(context, *args, **kwargs)

    PContext.start, PContext.close = started, closing  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        PContext.start, PContext.close = start, close  # type: ignore[method-assign]


def _exit_code(context: Any, local_rank: int) -> int | None:
    """As the agent collected it: SubprocessContext for programs, MultiprocessContext for --run-path."""
    if hasattr(context, "subprocess_handlers"):
        code = context.subprocess_handlers[local_rank].proc.returncode
    else:
        code = context._pc.processes[local_rank].exitcode
    return code if isinstance(code, int) else None


class _Unsaid(logging.Filter):
    """Leaves out what distdoctor says itself, and better: whom the agent ended, whom it suspects, the threads' banner."""

    beginnings = (
        "Sending process",
        "failed (exitcode",
        "\n****",
        "Received %s death signal",
        "Closing process",
        "no error file defined",
    )

    def filter(self, record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith(self.beginnings)


@contextlib.contextmanager
def _without_the_agents_verdict() -> Iterator[None]:
    unsaid = _Unsaid()
    loggers = [
        logging.getLogger(name)
        for name in (
            "torch.distributed.elastic.multiprocessing.api",
            "torch.distributed.elastic.multiprocessing.errors.error_handler",
            "torch.distributed.elastic.agent.server.api",
            "torch.distributed.run",
        )
    ]
    for logger in loggers:
        logger.addFilter(unsaid)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(unsaid)
