"""The faults that happen to a job under torchrun and under distdoctor: `FAULTS`."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil
from fault_stage import Fault, Stage

# A rank that comes late enough for the launcher to ask for its stacks, and goes on.
STOPPED = "time.sleep(25)"
NO_FILES = """
held = []
try:
    while True:
        held.append(open(os.devnull))
except OSError:
    pass
"""
CHILD = "import sys, torch; print('child', torch.ones(1).item())"


def _read_only(stage: Stage) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(stage.folder)], check=True)


def _without(program: str) -> str:
    where = Path(sys.executable).parent / program
    return f"exec unshare -m bash -c 'mount --bind /dev/null {where}; exec {{}}'"


def _hanging(program: str) -> str:
    where = Path(sys.executable).parent / program
    stuck = "printf '#!/bin/sh\\nexec sleep 600\\n' > stuck; chmod 755 stuck"
    return f"{stuck}; exec unshare -m bash -c 'mount --bind $PWD/stuck {where}; exec {{}}'"


def _open_to_all(stage: Stage) -> None:
    for folder in (stage.folder, stage.marks, stage.folder.parent):
        folder.chmod(0o777)


# As a user who sees no process but the own ones; root would see them all. It may read what root may, for the interpreter's sake.
NOBODY = (
    "exec unshare -m bash -c 'mount -t proc -o hidepid=2 proc /proc; exec setpriv --reuid=65534 --regid=65534 --clear-groups "
    "--inh-caps=+dac_read_search --ambient-caps=+dac_read_search {}'"
)
# A rank that made itself undumpable, and a launcher that is root of a container without the capability.
UNDUMPABLE = "__import__('ctypes').CDLL(None).prctl(4, 0, 0, 0, 0)\n"


def _press_when_ranks_are_gone(stage: Stage) -> None:
    stage.wait_for("losses", 2)
    pids = [int((stage.marks / f"ready-{rank}").read_text()) for rank in range(2)]
    while not stage.over() and any(map(psutil.pid_exists, pids)):
        time.sleep(0.002)
    time.sleep(0.3)  # torch's agent asks every tenth of a second; by now it knows that the job is over
    stage.press(signal.SIGINT, ranks=0)


def _ctrl_c() -> Iterator[Fault]:
    """Ctrl-C at each moment of a job, once, and again 0.3 s later."""
    late: dict[str, str | None] = {"FAULTS_LATE": "5"}
    saves = "[(torch.save(model.state_dict(), f'{marks}/last.pt'), time.sleep(0.001)) for _ in range(3000)]"
    for words, numbers in (("Ctrl-C", (signal.SIGINT,)), ("Ctrl-C twice", (signal.SIGINT, signal.SIGINT))):
        press = partial(Stage.press, pause=0.3) if len(numbers) > 1 else Stage.press
        yield Fault(f"{words} 0.15 s after the start", outside=lambda s, n=numbers: s.press_after(0.15, *n))
        yield Fault(f"{words} while ranks import torch", outside=lambda s, n=numbers, p=press: p(s, *n, mark="begun"))
        yield Fault(
            f"{words} while a rank waits in the rendezvous",
            variables=late,
            outside=lambda s, n=numbers, p=press: p(s, *n, mark="joining"),
        )
        yield Fault(f"{words} before the first step", outside=lambda s, n=numbers, p=press: p(s, *n, mark="joined"))
        yield Fault(f"{words} while they train", outside=lambda s, n=numbers, p=press: p(s, *n))
        yield Fault(
            f"{words} while a checkpoint is written",
            inside=saves,
            outside=lambda s, n=numbers, p=press: p(s, *n, mark="last.pt", ranks=1),
        )
    yield Fault("Ctrl-C while the report is made", outside=_press_when_ranks_are_gone)


FAULTS = [
    Fault("none"),
    Fault("a rank gets SIGKILL", inside="os.kill(os.getpid(), signal.SIGKILL)"),
    Fault("a rank gets SIGTERM", outside=lambda s: s.signal_rank(signal.SIGTERM)),
    Fault("a rank gets SIGSEGV", inside="os.kill(os.getpid(), signal.SIGSEGV)"),
    Fault(
        "a rank is stopped for 4 s",
        outside=lambda s: s.signal_rank(signal.SIGSTOP, signal.SIGCONT, pause=4),
    ),
    Fault("a rank ends with 0", inside="sys.exit(0)"),
    Fault("a rank ends by os._exit(0)", inside="os._exit(0)"),
    Fault("an exception in a rank", inside="raise ValueError('sample 57 has no label')"),
    Fault("an exception in __del__", inside="type('Bad', (), {'__del__': lambda self: 1 / 0})()"),
    Fault("an exception in atexit", inside="atexit.register(lambda: 1 / 0)"),
    Fault("a rank ends with 3 in atexit", inside="atexit.register(lambda: os._exit(3))"),
    Fault("a rank closes all its files", inside="os.closerange(3, 1024)"),
    Fault("a rank is left by KeyboardInterrupt", inside="raise KeyboardInterrupt"),
    Fault("a rank forks", inside="pid = os.fork()\nif not pid: torch.ones(4).sum(); sys.exit(0)\nos.waitpid(pid, 0)"),
    Fault("a rank starts Python", inside=f"subprocess.run([sys.executable, '-c', {CHILD!r}], check=True)"),
    Fault(
        "a rank starts another torchrun",
        inside="subprocess.run([sys.executable, '-m', 'torch.distributed.run', '--standalone', '--nproc-per-node', '2', "
        "'inner.py'], check=True)",
    ),
    Fault(
        "a rank spawns ranks of its own",
        inside="import spawned, torch.multiprocessing as mp\n"
        "mp.spawn(spawned.work, (marks,), nprocs=2)\n"
        "assert os.path.exists(f'{marks}/spawned-0') and os.path.exists(f'{marks}/spawned-1')",
    ),
    Fault(
        "the kernel kills a rank for lack of memory",
        inside="held = []\nwhile True: held.append(torch.ones(1 << 22))",
        shell="echo $$ > {group}/cgroup.procs && exec {}",
        before=Stage.make_group,
    ),
    Fault("another process gets the pid of a rank", outside=Stage.take_pid),
    Fault("the launcher gets SIGKILL", outside=lambda s: s.signal_launcher(signal.SIGKILL)),
    Fault("the launcher gets SIGTERM", outside=lambda s: s.signal_launcher(signal.SIGTERM)),
    Fault("the launcher gets SIGHUP", outside=lambda s: s.signal_launcher(signal.SIGHUP)),
    Fault(
        "the launcher is stopped for 4 s",
        outside=lambda s: s.signal_launcher(signal.SIGSTOP, signal.SIGCONT, pause=4),
    ),
    *_ctrl_c(),
    Fault("stdout goes to head -1", shell="{} | head -1; exit ${{PIPESTATUS[0]}}"),
    Fault("stdin is closed", shell="exec {} <&-"),
    Fault("stdout and stderr are closed", shell="exec {} >&- 2>&-"),
    Fault("the disk is full before", file_system="size=20m", before=Stage.fill_disk),
    Fault("the disk fills up", file_system="size=20m", outside=lambda s: (s.wait_until_trained(), s.fill_disk())[0]),
    Fault("the folder is read-only", file_system="size=20m", before=_read_only),
    Fault("the run folder is removed", outside=Stage.remove_run),
    Fault("64 open files at most", shell="ulimit -n 64; exec {}"),
    Fault("a rank has no file left to open", inside=NO_FILES),
    Fault("8 GiB of address space", shell="ulimit -v 8388608; exec {}"),
    Fault(
        "a rank's address space runs out",
        inside="resource.setrlimit(resource.RLIMIT_AS, (2 << 30, -1))\ntorch.ones(1 << 32)",
    ),
    Fault("a rank has no address space left", inside="resource.setrlimit(resource.RLIMIT_AS, (1 << 20, -1))"),
    Fault("files of 1 MiB at most", shell="ulimit -f 1024; exec {}"),
    Fault("HOME is unset", variables={"HOME": None}),
    Fault("HOME is no folder", variables={"HOME": "/proc/version"}),
    Fault("HOME is read-only", variables={"HOME": "/sys"}),
    Fault("LANG=C", variables={"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0"}),
    Fault("TERM=dumb", variables={"TERM": "dumb"}),
    Fault("py-spy is missing", inside=STOPPED, shell=_without("py-spy")),
    Fault("py-spy hangs", inside=STOPPED, shell=_hanging("py-spy")),
    Fault(
        "ptrace of a rank is refused",
        inside=f"{UNDUMPABLE}{STOPPED}",
        shell="exec setpriv --bounding-set=-sys_ptrace {}",
    ),
    Fault(
        "/proc shows no process of others",
        inside=STOPPED,
        shell=NOBODY,
        variables={"HOME": "/tmp"},
        before=_open_to_all,
    ),
    Fault(
        "the clock is set back an hour",
        before=Stage.make_clock,
        inside="open('set-back', 'w').close()",
        shell="LD_PRELOAD=$PWD/clock.so exec {}",
    ),
    Fault("two jobs in one folder", outside=Stage.second_job),
]
