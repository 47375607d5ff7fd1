"""What can happen to a job over two hosts: what each host said of it, how it ended and how soon, beside plain torchrun.

    python benchmarks/situations.py [-o FILE] [--shared | --own] [NAME ...]
    python benchmarks/situations.py --table FILE

As root: the hosts are network namespaces with a PID namespace each (tests/launch/network.py), so that their pids are equal.
Two ranks run on each, ranks 2-3 on the second. Every situation is played twice: each host records into a folder of its own, then
both into one (`--own`, `--shared`: only the one or the other). A verdict is false where a job that failed is healthy or a sound
one has a finding, and where a finding stronger than `possible` names another code or other ranks than the planted ones. "Told"
counts from the moment at which the trouble is there: the script or this program writes it down. With `-o` the rows are kept,
those of earlier calls too, each with the commit that it was measured on; `--table` shows those of the present commit, and on
stderr which are missing.

`DISTDOCTOR_OTHER_TORCH` names a folder with another torch (`pip install --target FOLDER --no-deps torch==...`) for the row that
mixes two of them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "launch"))
import signal

from launching import Command
from network import Hosts, made_hosts, why_not
from situation_rows import NPROC, ROWS, Row

START_SECONDS = 180.0  # that all ranks get to come to their first step; an idle machine takes 15
PLAIN_SECONDS = 12.0  # that torchrun gets once the trouble is there
AFTERWARDS_SECONDS = 12.0  # that a job which cannot end is watched after both hosts have told


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
    """Of one situation. `told`: by the folders, "own" or "one", what each host made of it. `tree`: the commit."""

    name: str
    tree: str = ""
    plain: str = "-"
    told: dict[str, list[Told]] = field(default_factory=dict)


@contextmanager
def lab(row: Row, *, hosts: int = 2) -> Iterator[tuple[Hosts, list[Command]]]:
    """Hosts of its own for a row, and all that was started on them gone afterwards."""
    with tempfile.TemporaryDirectory() as made:
        folder, running = Path(made), []
        (folder / "train.py").write_text(row.body)

        def begin(words: list[str], env: dict[str, str] | None = None) -> Command:
            running.append(Command.of_words(words, folder, {**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}))
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
        if row.stays:
            hosts.keep_up(row.stays)
        there, began = hosts.folder / "there", time.time()
        heard = []
        for host in (1,) if row.starts == "one" else (1, 2):
            if host == 2 and row.starts == "later":
                _until((hosts.folder / "at-1").exists, began + START_SECONDS)
            heard.append(
                Heard(hosts.begin(words=_words(row, hosts, host, plain=plain, shared=shared), env=_env(row, host)))
            )
        if row.starts in ("both", "mixed"):
            _until(lambda: _all_train(hosts) or any(one.code is not None for one in heard), began + START_SECONDS)
        since = time.time()
        if row.act is not None:
            time.sleep(2)
            there.write_text(f"{time.time()}\n")
            row.act(hosts)
        _watch(row, heard, there, since, plain=plain)
        codes = [one.code for one in heard]
        if not plain:
            codes = _ended(row, hosts, heard)
        moment = max(map(float, there.read_text().split())) if there.exists() else began
        folders = {host: hosts.folder / ("run" if shared else f"run{host}") for host in row.by}
        return Played(heard, codes, moment, {host: _diagnosis(folder) for host, folder in folders.items()})


def _all_train(hosts: Hosts) -> bool:
    return all((hosts.folder / f"at-{rank}").exists() for rank in range(2 * NPROC))


def _ended(row: Row, hosts: Hosts, heard: list[Heard]) -> list[int | None]:
    """A job that stands is ended as by Ctrl-C, and examined."""
    tellers = [heard[host - 1] for host in row.by]
    if any(one.code is None for one in tellers):
        for host in hosts.addresses:
            hosts.signal(host, signal.SIGTERM)
    _until(lambda: all(one.code is not None for one in tellers), time.time() + 25)
    time.sleep(0.2)  # for the last lines
    return [one.code for one in heard]


def _watch(row: Row, heard: list[Heard], there: Path, since: float, *, plain: bool) -> None:
    """Until all have ended, or all who are to tell have told and some time has passed; torchrun tells nothing."""
    done: float | None = None
    while time.time() < since + row.limit and any(one.code is None for one in heard):
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


HEADS = """| situation | plain torchrun | folders | distdoctor, host by host | exit | told after s | false |
|---|---|---|---|---|---|---|"""


def lines(one: Outcome) -> list[str]:
    """The rows of the table for one situation."""
    by = next(row.by for row in ROWS if row.name == one.name)
    return [
        f"| {one.name} | {one.plain} | {folders} | " + " | ".join(_cells(hosts, by)) + " |"
        for folders, hosts in sorted(one.told.items(), reverse=True)
    ]


def _cells(hosts: Sequence[Told], by: Sequence[int]) -> tuple[str, str, str, str]:
    """What was told, the exit codes, the seconds, and what of it was false, host by host; `by`: which hosts these are."""
    verdicts = [told.verdict for told in hosts]
    alike = len(set(verdicts)) == 1
    said = verdicts[0] if alike else "; ".join(f"{n}: {verdict}" for n, verdict in zip(by, verdicts, strict=True))
    codes = "/".join("-" if told.code is None else str(told.code) for told in hosts)
    seconds = " / ".join("-" if told.seconds is None else f"{told.seconds:.1f}" for told in hosts)
    false = "; ".join(f"{n}: {', '.join(told.false)}" for n, told in zip(by, hosts, strict=True) if told.false) or "no"
    return said, codes, seconds, false


def show(outcomes: dict[str, Outcome]) -> None:
    """The table of what was measured on this tree; what was not is named on stderr."""
    print(HEADS)
    for row in ROWS:
        one = outcomes.get(row.name)
        if one is None or one.tree != tree():
            print(f"{row.name}: not measured on {tree()}", file=sys.stderr)
            continue
        print("\n".join(lines(one)))
        for missing in {"one", "own"} - one.told.keys():
            print(f"{row.name}: not played with {missing} folder", file=sys.stderr)


def tree() -> str:
    """The last commit that touched what is measured, or how it is."""
    paths = ["--", "distdoctor", "plugins", "benchmarks/situation_rows.py"]
    here = ["git", "-C", str(Path(__file__).parent.parent)]
    last = subprocess.run(
        [*here, "log", "-1", "--format=%h", *paths], capture_output=True, text=True, check=True
    ).stdout
    is_clean = subprocess.run([*here, "diff", "--quiet", "HEAD", *paths], check=False).returncode == 0
    return last.strip() + ("" if is_clean else " with changes")


def kept(path: Path) -> dict[str, Outcome]:
    if not path.exists():
        return {}
    return {
        name: Outcome(
            name,
            one["tree"],
            one["plain"],
            {folders: [Told(**told) for told in hosts] for folders, hosts in one["told"].items()},
        )
        for name, one in json.loads(path.read_text()).items()
    }


def measured(row: Row, known: Outcome, asked: argparse.Namespace) -> None:
    """Play the situation in all the ways that are asked for."""
    if not asked.no_plain:
        known.plain = plain_words(play(row, plain=True))
    if not asked.plain_only:
        for folders, is_left_out in (("own", asked.shared), ("one", asked.own)):
            if not is_left_out:
                known.told[folders] = told_of(row, shared=folders == "one")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", choices=[[], *(row.name for row in ROWS)])
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--table", type=Path)
    folders = parser.add_mutually_exclusive_group()
    folders.add_argument("--shared", action="store_true", help="only into one folder for both hosts")
    folders.add_argument("--own", action="store_true", help="only into a folder for each host")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--no-plain", action="store_true", help="do not run them under torchrun alone")
    which.add_argument("--plain-only", action="store_true", help="run them under torchrun alone")
    asked = parser.parse_args()
    if asked.table:
        show(kept(asked.table))
        return
    if trouble := why_not():
        sys.exit(trouble)
    outcomes, now = kept(asked.output) if asked.output else {}, tree()
    for row in ROWS:
        if (asked.names and row.name not in asked.names) or (
            row.starts == "mixed" and "DISTDOCTOR_OTHER_TORCH" not in os.environ
        ):
            continue
        known = outcomes.get(row.name)
        if known is None or known.tree != now:
            known = outcomes[row.name] = Outcome(row.name, now, known.plain if known is not None else "-")
        measured(row, known, asked)
        print("\n".join(lines(known)), flush=True)
        if asked.output:
            asked.output.write_text(json.dumps({name: asdict(one) for name, one in outcomes.items()}, indent=1))


if __name__ == "__main__":
    main()
