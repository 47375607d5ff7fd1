"""torchrun before 2.14 has one port for all jobs of a host: a second one of ours does without it."""

from __future__ import annotations

import argparse
import contextlib
import socket
from collections.abc import Iterator

import pytest

from distdoctor.launch.observed_agent import DEFAULT_PORT, _avoid_a_taken_port
from distdoctor.launch.resumed_runs import torchrun


@pytest.fixture
def held() -> Iterator[None]:
    """The port is taken: by us, or by somebody who was before us."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            listener.bind(("", DEFAULT_PORT))
            listener.listen()
        yield


def asked(**given: object) -> argparse.Namespace:
    """As the parser of torch 2.11 leaves it."""
    usual = {
        "rdzv_backend": "static",
        "rdzv_endpoint": "",
        "master_port": DEFAULT_PORT,
        "nnodes": "1:1",
        "standalone": False,
    }
    return argparse.Namespace(**{**usual, **given})


@pytest.mark.usefixtures("held")
@pytest.mark.parametrize(
    ("given", "free"),
    [({}, True), ({"nnodes": "1"}, True), ({"nnodes": "2"}, False), ({"master_port": 29501}, False),
     ({"master_port": None}, False), ({"rdzv_endpoint": "a:1"}, False), ({"rdzv_backend": "c10d"}, False)],
)  # fmt: skip
def test_a_port_that_is_taken_is_left_where_nobody_asked_for_it(given: dict[str, object], free: bool) -> None:
    arguments = asked(**given)
    _avoid_a_taken_port(arguments)
    assert arguments.standalone is free


@pytest.mark.parametrize(("options", "free"), [(["--nproc-per-node", "2"], True), (["--master-port", "1"], False)])
def test_runs_beside_our_own_take_a_free_port(options: list[str], free: bool) -> None:
    assert ("--standalone" in torchrun(options, ["train.py"])) is free
