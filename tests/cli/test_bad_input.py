"""Wrong use is told in one sentence with a way out, and its own exit code, before any rank is started."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

MINE = """
def whole(in_features=64, classes=10):
    from torch import nn
    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(64, 10)
        def forward(self, x):
            return self.net(x)
    return Whole()

def fails():
    raise RuntimeError("no weights here")

def nothing():
    return None

def wants(path, *, shuffle):
    return None

def exits():
    raise SystemExit("no data here")

def sharded():
    import torch.distributed as dist
    return open(f"shard-{dist.get_rank()}-of-{dist.get_world_size()}")

number = 3
"""
AGREED = """
def loader():
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
    sizes = [None] * dist.get_world_size()
    dist.all_gather_object(sizes, dist.get_rank())
    if sizes != [0, 1]:
        raise ValueError(f"every rank has its own share, but not here: {sizes}")
    data = TensorDataset(torch.arange(8.0))
    return DataLoader(data, sampler=DistributedSampler(data))
"""
DDP = ["run", "--strategy", "ddp", "--nproc", "2"]
NO_BLOCKS = "Whole cannot be cut into blocks, which --checkpoint-activations needs"
WRONG_USE: list[tuple[list[str], str]] = [
    (["run", "--nproc", "0", "train.py"], "--nproc 0 on 1 node(s) starts no rank"),
    (["run", "--nproc", "two", "train.py"], "Unsupported nproc_per_node value: two"),
    (["run", "gone.py"], "there is no script gone.py"),
    (["run", "--nproc", "2", "--", "gone.py"], "there is no script gone.py"),
    (["run", "--ignore", "DD999", "train.py"], "--ignore DD999: there is no such check"),
    (["run", "--streams", "foo", "train.py"], "there is no stream foo"),
    (["run", "-o", "gone/report.html", "train.py"], "gone/report.html cannot be written: there is no folder gone"),
    (["run", "--baseline", "garbage.txt", "train.py"], "--baseline garbage.txt is no report of distdoctor"),
    (["run", "--", "no-such-launcher", "train.py"], "no-such-launcher cannot be started: there is no such program"),
    (["run", "--strategy", "foo"], "there is no strategy foo"),
    ([*DDP, "--model", "foo"], "there is no model named foo"),
    ([*DDP, "--model", "mine:gone"], "has no gone"),
    ([*DDP, "--model", "gone.at.all:make"], "there is no module gone.at.all"),
    ([*DDP, "--model", "mine:fails"], "mine:fails failed: RuntimeError: no weights here (mine.py:13)"),
    ([*DDP, "--model", "mine:nothing"], "mine:nothing returned NoneType"),
    ([*DDP, "--data", "mine:fails"], "mine:fails failed: RuntimeError: no weights here (mine.py:13)"),
    ([*DDP, "--model", "mine:whole", "--checkpoint-activations"], NO_BLOCKS),
    (["run", "--strategy", "pipeline", "--nproc", "2", "--model", "mine:whole"], "which --strategy pipeline needs"),
    (["run", "--strategy", "model-parallel", "--nproc", "99", "--model", "mlp"], "cuts the model into 99 pieces"),
    (["advise", "--try", "checkpoint-activations", "--model", "mine:whole"], NO_BLOCKS),
    (["advise", "--gpus", "2x1GiB", "--model", "mine:whole", "--checkpoint-activations"], NO_BLOCKS),
    (["advise", "--gpus", "2x1GiB", "--model", "mine:fails"], "mine:fails failed: RuntimeError: no weights here"),
    (["check-data", "--loader", "foo"], "--loader foo names no function"),
    (["check-data", "--loader", "mine:gone"], "has no gone"),
    (["check-data", "--loader", "gone:make"], "there is no module gone"),
    (["check-data", "--loader", "broken:make"], "broken:make failed: SyntaxError: invalid syntax (broken.py:1)"),
    (["check-data", "--loader", "mine:number"], "mine:number is no function, it is of type int"),
    (["check-data", "--loader", "mine:wants"], "mine:wants wants path, shuffle, which distdoctor cannot know"),
    (["check-data", "--loader", "mine:fails"], "mine:fails failed: RuntimeError: no weights here (mine.py:13)"),
    (["check-data", "--loader", "mine:exits"], "mine:exits failed: SystemExit: no data here (mine.py:22)"),
    (["check-data", "--loader", "mine:nothing"], "mine:nothing returned NoneType"),
    (["check-data", "--loader", "mine:sharded"], "No such file or directory: 'shard-0-of-2' (mine.py:26)"),
    ([*DDP, "--model", "broken:make"], "broken:make failed: SyntaxError: invalid syntax (broken.py:1)"),
    ([*DDP, "--model", "mine:number"], "mine:number is no function, it is of type int"),
    (["compare", "--model", "mine:fails"], "mine:fails failed: RuntimeError: no weights here (mine.py:13)"),
    (["check-data", "--dry"], "--dry needs to know which loaders to read"),
    (["advise", "--gpus", "many"], "--gpus many says neither how many devices nor how much memory"),
    (["runs", "--keep", "2"], "--keep 2 without --prune removes nothing"),
    (["run", "--notify", "pigeon", "train.py"], "--notify pigeon: there is no such way to notify"),
    (["preflight", "--nproc", "0"], "0 is not in the range x>=1"),
    (["lint", "gone.py"], "there is no file gone.py"),
    (["explain", "DD999"], "there is no check DD999"),
    (["examine", "empty", "--ignore", "DD999"], "--ignore DD999: there is no such check"),
    (["report", "--output-format", "foo", "empty"], "there is no report format foo"),
    (["examine", ""], "an empty PATH names nothing"),
]
NOTHING_THERE: list[tuple[list[str], str]] = [
    *((["examine", path], path) for path in ("gone", "garbage.txt", "empty", "/dev/null")),
    *((["report", path], path) for path in ("gone", "garbage.txt", "empty")),
    *((["show", path], path) for path in ("gone", "garbage.txt", "empty")),
    *((["bundle", path, "-o", "x.ddb"], path) for path in ("gone", "garbage.txt", "empty")),
    (["examine", "gone"], "no such file or folder: gone"),
    (["diff", "empty", "garbage.txt"], "empty"),
    (["hang-dump", "--pid", "99999999"], "there is no process 99999999"),
]
CASES = [*((words, 2, said) for words, said in WRONG_USE), *((words, 4, said) for words, said in NOTHING_THERE)]


@pytest.mark.parametrize(("words", "code", "said"), CASES, ids=[" ".join(words) for words, _, _ in CASES])
def test_bad_input_is_one_sentence_and_a_way_out(
    say: Callable[..., Any], tmp_path: Path, words: list[str], code: int, said: str
) -> None:
    (tmp_path / "train.py").write_text("raise SystemExit('a rank was started')\n")
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "broken.py").write_text("def make(:\n")
    (tmp_path / "garbage.txt").write_text("nothing\n")
    (tmp_path / "empty").mkdir()

    done = say(*words)

    assert done.code == code, done.err
    sentence, *way_out = [line for line in done.err.splitlines() if "no GPU is visible" not in line]
    assert sentence.startswith("distdoctor: ")
    assert said in sentence
    assert len(way_out) == 1
    assert way_out[0].startswith("  ")
    assert not done.out
    assert not list(tmp_path.glob(".distdoctor/runs/2*"))


def test_loaders_whose_files_the_ranks_exchange_are_left_to_the_ranks(say: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "agreed.py").write_text(AGREED)

    done = say("check-data", "--loader", "agreed:loader")

    assert done.code == 0, done.err
    assert "8 samples of TensorDataset" in done.out


ODD = ("fifo", "fifo.log", "fifo.pt", "fifo.safetensors", "fifo.json", "fifo.ddb", "fifo.trace")
INSIDE = (
    "clog_0.log",
    "dump_rank_0",
    "job.log",
    ".metadata",
    "model.safetensors",
    "job.json",
    "a.json",
    "rank-00000.a0.trace",
)


@pytest.fixture
def in_time() -> Iterator[None]:
    """Who waits for a writer that never comes is interrupted."""
    signal.alarm(60)
    yield
    signal.alarm(0)


@pytest.mark.usefixtures("in_time")
@pytest.mark.parametrize("command", ["examine", "show", "report"])
def test_what_is_no_regular_file_holds_nobody_up(say: Callable[..., Any], tmp_path: Path, command: str) -> None:
    for name in ODD:
        os.mkfifo(tmp_path / name)
    for name in INSIDE:
        (tmp_path / f"with {name}").mkdir()
        os.mkfifo(tmp_path / f"with {name}" / name)

    for path in sorted(tmp_path.iterdir()):
        said = say(command, path)

        assert said.code in (4, 5) or (command != "examine" and "healthy" not in said.out), (path, said)
        assert "could not go on" not in said.err, (path, said)


def test_folders_in_folders_come_to_an_end(say: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "deep" / "/".join(["d"] * 900)).mkdir(parents=True)
    (tmp_path / "deep" / "again").symlink_to(tmp_path)

    said = say("examine", tmp_path / "deep")

    assert (said.code, said.err.count("\n")) == (4, 2), said.err
    shutil.rmtree(tmp_path / "deep")
