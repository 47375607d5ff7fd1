"""Real jobs for the tests of the launcher: tiny scripts, a hard limit, and nothing left running."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from launching import Command, Finished
from network import Hosts, made_hosts, why_not


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Command]]:
    """Start `distdoctor ARGS` in an empty folder."""
    running: list[Command] = []

    def begin(*arguments: object, env: dict[str, str] | None = None, words: list[str] | None = None) -> Command:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("DISTDOCTOR", "PET_", "TORCHELASTIC"))}
        bin_folder = str(Path(sys.executable).parent)
        path = os.pathsep.join([bin_folder, kept.get("PATH", "")])
        environment = {**kept, "OMP_NUM_THREADS": "1", "PATH": path, **(env or {})}
        if words is None:
            running.append(Command.of_distdoctor([*map(str, arguments)], tmp_path, environment))
        else:
            running.append(Command.of_words(words, tmp_path, environment))
        return running[-1]

    yield begin
    for command in running:
        command.end()


@pytest.fixture
def distdoctor(start: Callable[..., Command]) -> Callable[..., Finished]:
    """Run `distdoctor ARGS` to its end."""

    def run(*arguments: object, env: dict[str, str] | None = None, words: list[str] | None = None) -> Finished:
        return start(*arguments, env=env, words=words).finish()

    return run


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., Path]:
    """Write a script whose ranks have joined a gloo group: `rank`, `world`, `dist`, `torch`, `t` are there."""

    def write(body: str, name: str = "train.py") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            "import os, signal, sys, time\n"
            "import torch, torch.distributed as dist\n"
            "dist.init_process_group('gloo')\n"
            "rank, world = dist.get_rank(), dist.get_world_size()\n"
            "t = torch.ones(4)\n"
            "dist.all_reduce(t)\n" + body + "\n"
        )
        return path

    return write


@pytest.fixture
def toy_plugin(tmp_path: Path) -> dict[str, str]:
    """The environment in which a stranger's plugin is installed: it reports the rank that entered fewer collectives."""
    site = tmp_path / "site"
    info = site / "toydoctor-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toydoctor\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[distdoctor]\ntoy = toydoctor\n")
    (site / "toydoctor.py").write_text(
        '"""DD199 toy-hang: a rank has entered fewer collectives than the others, and one of those is stuck."""\n'
        "from distdoctor.plugin_api import ERROR, LIKELY, WARNING, Finding, Prescription\n"
        "from distdoctor.plugin_api import Recording, Remedy, Stalls, check\n"
        "\n"
        "@check('DD199', 'toy-hang', severity=ERROR, family='hang', stalls=Stalls.FOREVER)\n"
        "def behind(recording: Recording):\n"
        "    counts = {rank: len(log.calls) for rank, log in recording.ranks.items()}\n"
        "    stuck = [r for r, log in recording.ranks.items() if len(log.calls) and not log.calls['returned_ns'][-1]]\n"
        "    late = [rank for rank in counts if counts[rank] < max(counts.values())]\n"
        "    if late and stuck:\n"
        "        site = recording.ranks[late[0]].call(recording.ranks[late[0]].calls[-1]).site\n"
        "        what = (Prescription('toy-cure'),)\n"
        "        sure = {'confidence': LIKELY, 'stalls': Stalls.FOREVER}\n"
        "        yield Finding(f'rank {late[0]} is behind', ranks=tuple(late), place=site, prescriptions=what, **sure)\n"
        "\n"
        "@check('DD198', 'toy-line', severity=WARNING)\n"
        "def line(recording: Recording):\n"
        "    for rank, log in recording.ranks.items():\n"
        "        for row in log.calls[:1]:\n"
        "            yield Finding('the first collective', ranks=(rank,), place=log.call(row).site)\n"
        "        return\n"
        "\n"
        "def distdoctor_checks():\n"
        "    return [behind, line]\n"
        "\n"
        "def distdoctor_remedies():\n"
        "    return [Remedy('toy-cure', 'Call it on every rank.')]\n"
    )
    return {"PYTHONPATH": os.pathsep.join([str(site), os.environ["PYTHONPATH"]]), "DISTDOCTOR_NO_PLUGIN": "checks"}


@pytest.fixture
def hosts(start: Callable[..., Command], tmp_path: Path) -> Iterator[Hosts]:
    """Two hosts; without root there are none."""
    yield from _hosts(tmp_path, start, 2)


@pytest.fixture
def three_hosts(start: Callable[..., Command], tmp_path: Path) -> Iterator[Hosts]:
    """Three hosts; without root there are none."""
    yield from _hosts(tmp_path, start, 3)


def _hosts(folder: Path, start: Callable[..., Command], count: int) -> Iterator[Hosts]:
    trouble = why_not()
    if trouble:
        pytest.skip(trouble)
    with made_hosts(folder, start, count) as made:
        yield made
