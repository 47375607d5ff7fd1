"""A rank that the kernel kills, because its cgroup's limit is reached, is named as such; other SIGKILLs are not."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from launching import Finished

from distdoctor.launch.kernel_kills import KernelKills, levels_of
from distdoctor.launch.last_lines import LastLines
from distdoctor.recording.recording import SourceLine

LIMIT = 2 << 30
GIB = 1 << 30
TRAINING = """
from torch import nn
from torch.nn.parallel import DistributedDataParallel
model = DistributedDataParallel(nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
kept = []
for step in range(30):
    optimizer.zero_grad()
    while rank == 1 and step == 4:
        kept.append(torch.ones(1 << 22))  # asks for more
    model(torch.ones(8, 64)).mean().backward()
    optimizer.step()  # the last line on record
"""


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A cgroup of our own that may hold `LIMIT` bytes; skipped where none can be made."""
    own = [level.folder for level in levels_of(os.getpid())]
    for parent in own:
        folder = parent / f"distdoctor-test-{time.monotonic_ns()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        name = next((n for n in ("memory.max", "memory.limit_in_bytes") if (folder / n).exists()), None)
        try:
            if name is not None and written(folder / name, LIMIT):
                written(folder / "memory.swap.max", 0)
                written(folder / "memory.swappiness", 0)
                yield folder
                return
        finally:
            removed(folder)
    pytest.skip("this machine lets nobody make a cgroup with a limit of its own here")


def written(path: Path, value: int) -> bool:
    try:
        path.write_text(str(value))
    except OSError:
        return False
    return True


def removed(folder: Path) -> None:
    """Its processes are gone, or about to go."""
    deadline = time.monotonic() + 30
    while folder.is_dir() and time.monotonic() < deadline:
        try:
            folder.rmdir()
        except OSError:
            time.sleep(0.05)


@pytest.mark.job
def test_a_rank_that_reaches_the_limit_of_its_cgroup_is_named_with_limit_step_and_line(
    distdoctor: Callable[..., Finished], script: Callable[..., Path], cgroup: Path
) -> None:
    path = script(TRAINING)
    run = f"{sys.executable} -m distdoctor run --nproc 2 --output-format json train.py"

    done = distdoctor(words=["sh", "-c", f"echo $$ > {cgroup}/cgroup.procs && exec {run}"])

    first = done.document["findings"][0]
    texts = path.read_text().splitlines()
    # Where memory ran low faster than anybody could look, the line at which the phase began is the last on record.
    lines = [number for number, text in enumerate(texts, 1) if "# asks for more" in text or "# the last line" in text]
    assert (first["code"], first["ranks"], first["confidence"]) == ("DD408", [1], "certain"), done.err
    assert first["evidence"]["limit_bytes"] == LIMIT
    assert (first["evidence"]["step"], first["evidence"]["phase"]) == (5, "forward")
    assert first["place"]["line"] in lines
    assert "its cgroup's limit of 2 GiB was reached" in first["title"]
    assert first["remedies"][0]["slug"] == "halve-the-micro-batch"
    assert done.job["ends"]["1"]["kernel_kills"] == 1
    assert [finding["code"] for finding in done.document["findings"] if finding["code"] == "DD110"] == []


def test_stacks_are_looked_at_while_memory_shrinks_and_not_while_it_stands_still() -> None:
    shares = [0.5, 0.14, 0.14, 0.13, 0.09, 0.09, 0.3, 0.12, 0.12]
    now, looks = [1.0], list[float]()

    def lines() -> dict[int, SourceLine]:
        looks.append(now[0])
        return {1: SourceLine("train.py", len(looks), "forward")}

    watch = LastLines(lambda: now[0], lines)
    for now[0] in shares:
        watch.look()

    assert looks == [0.14, 0.09, 0.12]
    assert watch.stop()[1][0] == SourceLine("train.py", 3, "forward")


# --- files like the kernel's ---------------------------------------------------------------------------------------------


def v2(folder: Path, *, kills: int = 0, oom: int = 0, limit: str = "max") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.events").write_text(f"low 0\nhigh 0\nmax 7\noom {oom}\noom_kill {kills}\noom_group_kill 0\n")
    (folder / "memory.max").write_text(limit + "\n")


def v1(folder: Path, *, kills: int = 0, failures: int = 0, limit: int = 1 << 63, most: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.oom_control").write_text(f"oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n")
    (folder / "memory.failcnt").write_text(f"{failures}\n")
    (folder / "memory.limit_in_bytes").write_text(f"{limit}\n")
    (folder / "memory.max_usage_in_bytes").write_text(f"{most}\n")


def process(proc: Path, line: str, *, host_kills: int = 0) -> None:
    (proc / "7").mkdir(parents=True, exist_ok=True)
    (proc / "7" / "cgroup").write_text(line + "\n")
    (proc / "vmstat").write_text(f"nr_free_pages 4711\noom_kill {host_kills}\n")


def test_the_limit_that_was_short_is_the_one_of_the_cgroup_that_says_so_and_not_of_a_wider_one(tmp_path: Path) -> None:
    cgroups, proc = tmp_path / "cgroup", tmp_path / "proc"
    process(proc, "0::/slice/job")
    v2(cgroups / "slice", limit=str(8 * GIB))
    v2(cgroups / "slice" / "job", limit=str(16 * GIB))
    kernel = KernelKills.of(7, cgroups, proc)

    v2(cgroups / "slice", kills=1, oom=1, limit=str(8 * GIB))
    v2(cgroups / "slice" / "job", kills=1, limit=str(16 * GIB))
    kernel.look()

    assert kernel.lately() == (1, 8 * GIB)
    assert kernel.counter == str(cgroups / "slice" / "job" / "memory.events")


def test_a_kill_without_any_limit_being_short_is_the_hosts(tmp_path: Path) -> None:
    cgroups, proc = tmp_path / "cgroup", tmp_path / "proc"
    process(proc, "0::/job")
    v2(cgroups / "job", limit=str(16 * GIB))
    kernel = KernelKills.of(7, cgroups, proc)

    v2(cgroups / "job", kills=1, limit=str(16 * GIB))
    kernel.look()

    assert kernel.lately() == (1, 0)


@pytest.mark.parametrize(("most", "limit"), [(4 * GIB, 4 * GIB), (GIB, 0)])
def test_in_version_1_the_limit_counts_when_the_cgroup_was_full(tmp_path: Path, most: int, limit: int) -> None:
    cgroups, proc = tmp_path / "cgroup", tmp_path / "proc"
    process(proc, "12:cpu,cpuacct:/\n4:memory:/docker/abc\n0::/")
    v1(cgroups / "memory", limit=4 * GIB)  # a container sees its own cgroup as the mount
    kernel = KernelKills.of(7, cgroups, proc)

    v1(cgroups / "memory", kills=1, failures=9, limit=4 * GIB, most=most)
    kernel.look()

    assert kernel.lately() == (1, limit)


def test_kills_of_long_ago_do_not_count(tmp_path: Path) -> None:
    cgroups, proc = tmp_path / "cgroup", tmp_path / "proc"
    process(proc, "0::/job")
    v2(cgroups / "job")
    kernel = KernelKills.of(7, cgroups, proc)
    began = kernel.readings[0].at

    v2(cgroups / "job", kills=1, oom=1)
    kernel.look(began + 1)
    kernel.look(began + 30)

    assert kernel.lately() == (0, 0)


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_what_is_left_leaves_out_what_files_have_cached(tmp_path: Path, version: str) -> None:
    cgroups, proc = tmp_path / "cgroup", tmp_path / "proc"
    folder = cgroups / "job" if version == "v2" else cgroups / "memory" / "job"
    process(proc, "0::/job" if version == "v2" else "4:memory:/job")
    (proc / "meminfo").write_text(f"MemTotal: {64 << 20} kB\nMemAvailable: {32 << 20} kB\n")
    if version == "v2":
        v2(folder, limit=str(8 * GIB))
        (folder / "memory.current").write_text(str(7 * GIB))
        (folder / "memory.stat").write_text(f"anon 1\ninactive_file {GIB}\nactive_file 0\n")
    else:
        v1(folder, limit=8 * GIB)
        v1(cgroups / "memory")
        (folder / "memory.usage_in_bytes").write_text(str(7 * GIB))
        (folder / "memory.stat").write_text(f"inactive_file 5\ntotal_inactive_file {GIB}\ntotal_active_file 0\n")

    assert KernelKills.of(7, cgroups, proc).left() == 0.25
    (proc / "meminfo").write_text(f"MemTotal: {64 << 20} kB\nMemAvailable: {8 << 20} kB\n")
    assert KernelKills.of(7, cgroups, proc).left() == 0.125


def test_without_a_cgroup_the_host_counts_and_without_any_counter_nothing_is_known(tmp_path: Path) -> None:
    cgroups, proc = tmp_path / "cgroup", tmp_path / "proc"
    process(proc, "0::/job")
    kernel = KernelKills.of(7, cgroups, proc)
    process(proc, "0::/job", host_kills=1)
    kernel.look()

    assert kernel.lately() == (1, 0)
    assert kernel.counter == str(proc / "vmstat")
    assert KernelKills.of(7, cgroups, tmp_path / "nowhere").lately() == (None, 0)
