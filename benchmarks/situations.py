"""What can happen to a job over two hosts: what each host said of it, how it ended and how soon, beside plain torchrun.

    python benchmarks/situations.py [-o FILE] [--shared] [NAME ...]
    python benchmarks/situations.py --table FILE

As root: the hosts are network namespaces with a PID namespace each (tests/launch/network.py), so that their pids are equal.
Two ranks run on each, ranks 2-3 on the second. Each host records into a folder of its own, or with `--shared` both into one. A
verdict is false where a job that failed is healthy or a sound one has a finding, and where a finding stronger than `possible`
names another code or other ranks than the planted ones. "Told" counts from the moment at which the trouble is there: the script
or this program writes it down. With `-o` the rows are kept, those of earlier calls too; `--table` shows them all.

`DISTDOCTOR_OTHER_TORCH` names a folder with another torch (`pip install --target FOLDER --no-deps torch==...`) for the row that
mixes two of them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "launch"))
import signal

from launching import Command
from network import Hosts, made_hosts, why_not

LIMIT_SECONDS = 75.0  # for distdoctor, from the start
PLAIN_SECONDS = 12.0  # that torchrun gets once the trouble is there
AFTERWARDS_SECONDS = 12.0  # that a job which cannot end is watched after both hosts have told
NPROC = 2

HEAD = """
import os, sys, time
import torch, torch.distributed as dist
from torch import nn
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
t = torch.ones(4)

def there():
    with open("there", "a") as moments:
        moments.write(f"{time.time()}\\n")

for step in range(10):
    dist.all_reduce(t)
open(f"at-{rank}", "w").close()
"""
FINISH = "dist.destroy_process_group()\n"
LOOP = "for step in range(100000):\n    dist.all_reduce(t)\n    time.sleep(0.02)\n"
HANG = "if rank == 3:\n    there()\n    dist.barrier()\ndist.all_reduce(t)\n"
SKIP = "if rank != 3:\n    dist.all_reduce(t)\nelse:\n    there()\ndist.all_reduce(torch.ones(16))\n"
HOST_WIDE = "if rank >= 2:\n    there()\n    dist.barrier()\ndist.all_reduce(t)\n"
STUCK = "if rank == 3:\n    there()\n    time.sleep(10000)\ndist.all_reduce(t)\n"
KILLED = "if rank == 3:\n    there()\n    os.kill(os.getpid(), 9)\n" + LOOP
RAISES = "if rank == 3:\n    there()\n    raise ValueError('a bad batch')\n" + LOOP
ONCE = 'if rank == 3 and not os.path.exists("tried"):\n    open("tried", "w").close()\n    '
RAISES_ONCE = ONCE + "raise ValueError('once')\n"
KILLED_ONCE = ONCE + "os.kill(os.getpid(), 9)\n"
DDP = """
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(12):
    optimizer.zero_grad()
    inputs = torch.ones(2, 4)
    PLANTED
    time.sleep(0.1)
"""
USUAL = "loss = model(inputs).sum(); loss.backward(); optimizer.step()"
DIVERGENCE = DDP.replace(
    "PLANTED",
    "loss = model(inputs).sum(); loss.backward()\n"
    "    if rank >= 2 and step >= 4:\n"
    "        for parameter in model.parameters():\n"
    "            parameter.grad += 0.5\n"
    "        step == 4 and there()\n"
    "    optimizer.step()",
)
NAN = DDP.replace(
    "PLANTED", f"if rank == 3 and step == 6:\n        there()\n        inputs = inputs * float('nan')\n    {USUAL}"
)
SET_EPOCH = """
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
data = TensorDataset(torch.arange(64.0).reshape(64, 1).expand(64, 4).clone())
sampler = DistributedSampler(data, shuffle=True)
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.001)
for epoch in range(3):
    epoch == 1 and there()
    for (inputs,) in DataLoader(data, batch_size=4, sampler=sampler):
        optimizer.zero_grad(); model(inputs).sum().backward(); optimizer.step()
"""
SLOW_ALONE = "for step in range(4000 if world == 2 else 20):\n    dist.all_reduce(t)\n    time.sleep(0.05 if world == 2 else 0)\n"
AGAIN = {
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"
}  # else torch 2.15 hands addresses of ranks that are gone to the next start


@dataclass(frozen=True)
class Row:
    """One situation. `right`: codes that a host may tell, `named`: the ranks that they may name; none in a sound job."""

    name: str
    body: str
    right: frozenset[str] = frozenset()
    named: frozenset[int] = frozenset()
    options: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    kind: str = "c10d"
    act: Callable[[Hosts], None] | None = None  # what happens to the hosts once all ranks train
    by: tuple[int, ...] = (1, 2)  # the hosts that are left to tell
    starts: str = "both"  # both, one, later, mixed
    limit: float = LIMIT_SECONDS
    words: str = ""  # what each of them must say where no code says it


def _row(name: str, body: str, right: str = "", named: Sequence[int] = (), **more: Any) -> Row:
    return Row(name, HEAD + body, frozenset(right.split()), frozenset(named), **more)


def _cut(hosts: Hosts) -> None:
    hosts.cut(2)


def _kill_agent(hosts: Hosts) -> None:
    hosts.signal(2, signal.SIGKILL)


def _kill_host(hosts: Hosts) -> None:
    hosts.go_down(2)


def _end_from_outside(hosts: Hosts) -> None:
    for host in (1, 2):
        hosts.signal(host, signal.SIGTERM)


ROWS = [
    _row("healthy", LOOP.replace("100000", "50") + FINISH),
    _row("hang", HANG, "DD112", [3]),
    _row("skip", SKIP, "DD101 DD112", [3]),
    _row("host-wide", HOST_WIDE, "DD112", [2, 3]),
    _row("stuck", STUCK, "DD116", [3]),
    _row("killed-rank", KILLED, "DD110", [3]),
    _row("raises", RAISES, "DD110", [3]),
    _row("killed-agent", LOOP, "DD132", [2, 3], act=_kill_agent, by=(1,)),
    _row("killed-host", LOOP, "DD132", [2, 3], act=_kill_host, by=(1,)),
    _row("absent-host", LOOP, options=("--rdzv-conf", "join_timeout=35"), starts="one", by=(1,),
         words="1 of 2 hosts have come: ddh1"),
    _row("cut-link", LOOP, "DD132", [0, 1, 2, 3], act=_cut),
    _row("restart", RAISES_ONCE + LOOP.replace("100000", "50") + FINISH, options=("--max-restarts", "1"), env=AGAIN,
         words="attempt 2 finished"),
    _row("restart-killed", KILLED_ONCE + LOOP.replace("100000", "50") + FINISH, options=("--max-restarts", "1"), env=AGAIN,
         words="attempt 2 finished"),
    _row("scale-up", SLOW_ALONE + FINISH, options=("--max-restarts", "1"), env=AGAIN, starts="later", limit=200),
    _row("divergence", DIVERGENCE + FINISH, "DD202", [0, 1, 2, 3]),
    _row("set-epoch", SET_EPOCH + FINISH, "DD301", [0, 1, 2, 3]),
    _row("nan", NAN + FINISH, "DD801", [3]),
    _row("static", HANG, "DD112", [3], kind="static"),
    _row("static-ipv6", HANG, "DD112", [3], kind="static6"),
    _row("c10d-ipv6", HANG, "DD112", [3], kind="c10d6"),
    _row("two-torches", HANG, "DD112", [3], starts="mixed"),
    _row("scheduler", LOOP, act=_end_from_outside, words="ended from outside by SIGTERM"),
]  # fmt: skip


class Heard:
    """What a command says, line by line, with the moment of each."""

    def __init__(self, command: Command) -> None:
        self.command = command
        self.lines: list[tuple[float, str]] = []
        streams = [command.process.stdout, command.process.stderr]
        self._ears = [threading.Thread(target=self._listen, args=(stream,), daemon=True) for stream in streams]
        for ear in self._ears:
            ear.start()

    def _listen(self, stream: IO[str]) -> None:
        for line in stream:
            self.lines.append((time.time(), line))

    @property
    def text(self) -> str:
        return "".join(line for _, line in self.lines)

    def first(self, codes: frozenset[str]) -> float | None:
        """When one of the codes was first said."""
        return next((at for at, line in self.lines if any(code in line for code in codes)), None)

    @property
    def code(self) -> int | None:
        return self.command.process.poll()

    def close(self) -> None:
        for ear in self._ears:
            ear.join(2)


@dataclass
class Told:
    """What one host made of it."""

    code: int | None
    seconds: float | None
    verdict: str
    false: list[str]


@dataclass
class Outcome:
    name: str
    plain: str
    hosts: list[Told]


@contextmanager
def lab(row: Row, *, hosts: int = 2) -> Iterator[tuple[Hosts, list[Command]]]:
    """Hosts of its own for a row, and all that was started on them gone afterwards."""
    with tempfile.TemporaryDirectory() as made:
        folder, running = Path(made), []
        (folder / "train.py").write_text(row.body)

        def begin(words: list[str], env: dict[str, str] | None = None) -> Command:
            running.append(Command(words, folder, {**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}))
            return running[-1]

        with made_hosts(folder, begin, hosts) as namespaces:
            try:
                yield namespaces, running
            finally:
                for host in namespaces.addresses:
                    namespaces.go_down(host)
                for command in running:
                    command.process.kill()


def _words(row: Row, hosts: Hosts, host: int, *, plain: bool, shared: bool) -> list[str]:
    nodes = "1:2" if row.starts == "later" else "2"
    module = (
        ["torch.distributed.run"] if plain else ["distdoctor", "run", "--run-dir", "run" if shared else f"run{host}"]
    )
    options = ["--nnodes", nodes, "--nproc-per-node", str(NPROC), *hosts.meeting(host, row.kind), *row.options]
    return [*hosts.on(host), sys.executable, "-m", *module, *options, "train.py"]


def _env(row: Row, host: int) -> dict[str, str]:
    if row.starts == "mixed" and host == 2:
        return {**row.env, "PYTHONPATH": os.environ["DISTDOCTOR_OTHER_TORCH"]}
    return row.env


@dataclass
class Played:
    """What each launcher said, its exit code (None: it stood), when the trouble was there, and what lies in the folders."""

    heard: list[Heard]
    codes: list[int | None]
    moment: float
    found: dict[int, dict[str, Any] | None]


def play(row: Row, *, plain: bool, shared: bool = False) -> Played:
    """The situation from its start to its end, or to where all has been told. A torchrun that stands is not examined."""
    with lab(row) as (hosts, _):
        if row.act is _kill_agent:
            hosts.keep_up(2)
        there, began = hosts.folder / "there", time.time()
        heard = []
        for host in (1,) if row.starts == "one" else (1, 2):
            if host == 2 and row.starts == "later":
                _until((hosts.folder / "at-1").exists, began + 60)
            heard.append(
                Heard(hosts.begin(words=_words(row, hosts, host, plain=plain, shared=shared), env=_env(row, host)))
            )
        if row.act is not None:
            _until(lambda: all((hosts.folder / f"at-{rank}").exists() for rank in range(2 * NPROC)), began + 60)
            time.sleep(2)
            there.write_text(f"{time.time()}\n")
            row.act(hosts)
        _watch(row, heard, there, began, plain=plain)
        codes = [one.code for one in heard]
        if not plain:
            codes = _ended(row, hosts, heard)
        moment = max(map(float, there.read_text().split())) if there.exists() else began
        folders = {host: hosts.folder / ("run" if shared else f"run{host}") for host in row.by}
        return Played(heard, codes, moment, {host: _diagnosis(folder) for host, folder in folders.items()})


def _ended(row: Row, hosts: Hosts, heard: list[Heard]) -> list[int | None]:
    """A job that stands is ended as by Ctrl-C, and examined."""
    tellers = [heard[host - 1] for host in row.by]
    if any(one.code is None for one in tellers):
        for host in hosts.addresses:
            hosts.signal(host, signal.SIGTERM)
    _until(lambda: all(one.code is not None for one in tellers), time.time() + 25)
    time.sleep(0.2)  # for the last lines
    return [one.code for one in heard]


def _watch(row: Row, heard: list[Heard], there: Path, began: float, *, plain: bool) -> None:
    """Until all have ended, or all who are to tell have told and some time has passed; torchrun tells nothing."""
    done: float | None = None
    while time.time() < began + row.limit and any(one.code is None for one in heard):
        tellers = [heard[host - 1] for host in row.by]
        if all(one.code is not None for one in tellers):
            return
        if plain and there.exists() and time.time() > there.stat().st_mtime + PLAIN_SECONDS:
            return
        if not plain and row.right and all(one.first(row.right) for one in tellers):
            done = done or time.time()
        if done and time.time() > done + AFTERWARDS_SECONDS:
            return
        time.sleep(0.05)


def _until(condition: Callable[[], bool], deadline: float) -> None:
    while not condition() and time.time() < deadline:
        time.sleep(0.05)


def _diagnosis(folder: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads((folder / "diagnosis.json").read_text())
    except (OSError, ValueError):
        return None
    return found


def judged(row: Row, host: int, played: Played) -> Told:
    """What the host said, and what of it is false."""
    heard, code, document = played.heard[host - 1], played.codes[host - 1], played.found[host]
    at = heard.first(row.right) if row.right else None
    findings = [one for one in (document or {}).get("findings", []) if one["severity"] != "note"]
    false = []
    for one in findings:
        if one["confidence"] == "possible":
            continue
        if one["code"] not in row.right:
            false.append(f"{one['code']} {one['confidence']} ranks {_ranks(one['ranks'])}")
        elif not set(one["ranks"]) <= row.named:
            false.append(f"{one['code']} names ranks {_ranks(one['ranks'])}")
    if row.right and not any(one["code"] in row.right for one in findings) and at is None:
        false.append("not told" + (", healthy" if "healthy" in heard.text else ""))
    if row.words and row.words not in heard.text:
        false.append(f"without the words {row.words!r}")
    if not row.right and not row.words and ("healthy" not in heard.text or code != 0):
        false.append(f"not healthy, exit code {code}")
    verdict = "; ".join(f"{one['code']} {one['confidence']} {_ranks(one['ranks'])}" for one in findings)
    said = verdict or row.words or ("healthy" if "healthy" in heard.text else _last_words(heard.text))
    return Told(code, None if at is None else round(at - played.moment, 1), said, false)


def _ranks(ranks: Sequence[int]) -> str:
    return ",".join(map(str, ranks)) or "-"


def _last_words(text: str) -> str:
    ours = [line for line in text.splitlines() if line.startswith("distdoctor: ")]
    return (ours or text.splitlines() or ["nothing"])[-1][:120]


def plain_words(played: Played) -> str:
    """What torchrun tells: its exit codes, and whom it names as the root cause on each host."""
    named = []
    for host, (one, code) in enumerate(zip(played.heard, played.codes, strict=True), 1):
        cause = re.search(r"Root Cause.*?rank +: (\d+).*?exitcode +: (\S+)", one.text, re.DOTALL)
        how = "stands" if code is None else f"exit {code}"
        named.append(f"{host}: {how}" + (f", blames rank {cause[1]} ({cause[2]})" if cause else ""))
    return "; ".join(named)


def told_of(row: Row, *, shared: bool) -> list[Told]:
    """What distdoctor told of the situation; where that was false, all that was said goes to stderr."""
    played = play(row, plain=False, shared=shared)
    told = [judged(row, host, played) for host in row.by]
    if any(one.false for one in told):
        for host, one in enumerate(played.heard, 1):
            print(f"--- {row.name}: host {host} ---\n{one.text}", file=sys.stderr)
    return told


def table(outcomes: Sequence[Outcome]) -> str:
    lines = [
        "| situation | plain torchrun | distdoctor, host by host | exit | told after s | false |",
        "|---|---|---|---|---|---|",
    ]
    for one in outcomes:
        said = sorted({told.verdict for told in one.hosts}) if len({t.verdict for t in one.hosts}) == 1 else [
            f"{n}: {told.verdict}" for n, told in enumerate(one.hosts, 1)
        ]  # fmt: skip
        codes = "/".join("-" if told.code is None else str(told.code) for told in one.hosts)
        seconds = " / ".join("-" if told.seconds is None else f"{told.seconds:.1f}" for told in one.hosts)
        false = "; ".join(f"{n}: {', '.join(t.false)}" for n, t in enumerate(one.hosts, 1) if t.false) or "no"
        lines.append(f"| {one.name} | {one.plain} | {'; '.join(said)} | {codes} | {seconds} | {false} |")
    return "\n".join(lines)


def kept(path: Path) -> dict[str, Outcome]:
    if not path.exists():
        return {}
    return {
        name: Outcome(name, one["plain"], [Told(**told) for told in one["hosts"]])
        for name, one in json.loads(path.read_text()).items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", choices=[[], *(row.name for row in ROWS)])
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--shared", action="store_true")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--no-plain", action="store_true", help="do not run them under torchrun alone")
    which.add_argument("--plain-only", action="store_true", help="run them under torchrun alone")
    asked = parser.parse_args()
    if asked.table:
        print(table(list(kept(asked.table).values())))
        return
    if trouble := why_not():
        sys.exit(trouble)
    outcomes = kept(asked.output) if asked.output else {}
    for row in ROWS:
        if (asked.names and row.name not in asked.names) or (
            row.starts == "mixed" and "DISTDOCTOR_OTHER_TORCH" not in os.environ
        ):
            continue
        known = outcomes.setdefault(row.name, Outcome(row.name, "-", []))
        if not asked.no_plain:
            known.plain = plain_words(play(row, plain=True))
        if not asked.plain_only:
            known.hosts = told_of(row, shared=asked.shared)
        print(table([outcomes[row.name]]).splitlines()[-1], flush=True)
        if asked.output:
            asked.output.write_text(json.dumps({name: asdict(one) for name, one in outcomes.items()}, indent=1))


if __name__ == "__main__":
    main()
