"""How long one look at a job on several hosts takes that nobody prepared: `hang-dump --on @HOSTFILE`, with a stand-in for ssh.

    python benchmarks/attach_hosts.py [--hosts 3] [--times 3]

As root: the hosts are network namespaces with a PID namespace each (tests/launch/network.py). Plain torchrun has started two
ranks on each; the last of them sleeps while the others wait for it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "launch"))
from launching import Command
from network import Hosts, made_hosts, why_not

TRAIN = """
import time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, t = dist.get_rank(), torch.ones(4)
for step in range(20):
    dist.all_reduce(t)
open(f"at-{rank}", "w").close()
if rank == dist.get_world_size() - 1:
    time.sleep(10000)
dist.all_reduce(t)
"""


def look(lab: Hosts, path: str) -> tuple[float, str]:
    """The seconds that it took, and the first line of the answer."""
    words = [sys.executable, "-m", "distdoctor", "hang-dump", "--on", "@hostfile", "--no-keep"]
    words += ["--remote-command", f"{sys.executable} -m distdoctor"]
    began = time.monotonic()
    environment = {**os.environ, "PATH": path}
    done = subprocess.run(words, check=False, cwd=lab.folder, env=environment, capture_output=True, text=True)
    return time.monotonic() - began, (done.stdout or done.stderr).partition("\n")[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--hosts", type=int, default=3)
    parser.add_argument("--times", type=int, default=3)
    asked = parser.parse_args()
    if trouble := why_not():
        sys.exit(trouble)
    with tempfile.TemporaryDirectory() as made:
        folder, running = Path(made), []
        (folder / "train.py").write_text(TRAIN)

        def begin(words: list[str], env: dict[str, str] | None = None) -> Command:
            running.append(Command.of_words(words, folder, {**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}))
            return running[-1]

        with made_hosts(folder, begin, asked.hosts) as lab:
            try:
                commands = lab.plain_torchrun(2, "train.py")
                for rank in range(2 * asked.hosts):
                    commands[0].wait_for((folder / f"at-{rank}").exists)
                (folder / "hostfile").write_text("".join(f"ddh{host} slots=2\n" for host in lab.addresses))
                path = os.pathsep.join([str(lab.ssh()), str(Path(sys.executable).parent), os.environ["PATH"]])
                time.sleep(2)
                for _ in range(asked.times):
                    seconds, words = look(lab, path)
                    print(f"{asked.hosts} hosts of 2 ranks: {seconds:.1f} s: {words}", flush=True)
            finally:
                for command in running:
                    command.end()


if __name__ == "__main__":
    main()
