"""SLURM on this machine alone: its own daemons (munged, slurmctld, slurmd) with one node, all they keep in one folder."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "scancel", "sinfo", "squeue", "unshare")
START_SECONDS = 30.0

_CONFIGURATION = """
ClusterName=ddlab
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={daemon}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
KillWait=5
InactiveLimit=0
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
PropagateResourceLimits=NONE
PlugStackConfig={folder}/plugstack.conf
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=lab Nodes={host} Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:8
"""


def why_not() -> str:
    """Why SLURM cannot be started here, "" where it may."""
    if os.geteuid() != 0:
        return "SLURM's daemons start processes of other users, which only root may"
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    return f"{', '.join(missing)} are not installed (slurmctld, slurmd, slurm-client, munge)" if missing else ""


@dataclass(frozen=True)
class Slurm:
    """A cluster of one node that runs. `env` leads its commands there."""

    folder: Path

    @property
    def env(self) -> dict[str, str]:
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def ask(self, *words: str) -> str:
        """What one of SLURM's commands says."""
        done = subprocess.run(words, env={**os.environ, **self.env}, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    @property
    def is_ready(self) -> bool:
        """Whether the node takes jobs."""
        environment = {**os.environ, **self.env}
        done = subprocess.run(["sinfo", "-h", "-o", "%T"], env=environment, capture_output=True, text=True, timeout=60)
        return done.stdout.strip() in ("idle", "mixed", "allocated")

    def job(self) -> str:
        """The number of the one job that runs."""
        deadline = time.monotonic() + START_SECONDS
        while not (running := self.ask("squeue", "-h", "-t", "R", "-o", "%i").split()):
            assert time.monotonic() < deadline, "no job runs"
            time.sleep(0.1)
        return running[0]


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[Slurm]:
    """A cluster, and none of its processes afterwards. Trouble at its start is a RuntimeError with what its daemons logged."""
    folder.mkdir(mode=0o755)
    slurm, started = Slurm(folder), list[subprocess.Popen[bytes]]()
    _write(folder)
    try:
        for words in _daemons(folder):
            log = (folder / f"{Path(words[0]).name}.out").open("wb")
            environment = {**os.environ, **slurm.env}
            started.append(subprocess.Popen(words, env=environment, stdout=log, stderr=log, start_new_session=True))
            time.sleep(0.3)
        deadline = time.monotonic() + START_SECONDS
        while not slurm.is_ready:
            if time.monotonic() > deadline or any(one.poll() is not None for one in started):
                raise RuntimeError(_logs(folder))
            time.sleep(0.2)
        yield slurm
    finally:
        _end(started)


def _daemons(folder: Path) -> list[list[str]]:
    munge = ["munged", "--foreground", "--force", f"--socket={folder}/munge.socket", f"--key-file={folder}/munge.key"]
    munge += [f"--{kind}-file={folder}/munged.{kind}" for kind in ("log", "pid", "seed")]
    node = socket.gethostname().partition(".")[0]
    # processes of its own, which all end with it: a step's daemon is nobody's child
    alone = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    return [munge, ["slurmctld", "-D", "-c"], [*alone, "slurmd", "-D", "-N", node]]


def _write(folder: Path) -> None:
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o600)
    for name in ("state", "spool"):
        (folder / name).mkdir()
    (folder / "plugstack.conf").write_text("")
    host = socket.gethostname().partition(".")[0]
    ports = dict(zip(("controller", "daemon"), _free_ports(2), strict=True))
    text = _CONFIGURATION.format(folder=folder, host=host, cpus=os.cpu_count(), **ports)
    (folder / "slurm.conf").write_text(text)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as opened:
        sockets = [opened.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


def _end(started: list[subprocess.Popen[bytes]]) -> None:
    """All of them, the jobs with the node."""
    for one in reversed(started):
        one.terminate()
        try:
            one.wait(10)
        except subprocess.TimeoutExpired:
            one.kill()
            one.wait()


def _logs(folder: Path) -> str:
    logs = [*sorted(folder.glob("*.out")), *sorted(folder.glob("*.log"))]
    return "SLURM does not start:\n" + "\n".join(f"{log.name}: {log.read_text()[-1500:]}" for log in logs)
