"""The ways to the hosts of a job: `ssh:gpu1,gpu2`, `@hostfile`, `srun:JOBID`, `kubectl:SELECTOR`, each as the user has set it up.

What runs there is a list of words. Names that could be taken for an option, or for more than a name, are refused.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from distdoctor.errors import CouldNotLook, NothingToInspect, WrongUse
from distdoctor.recording.files import read_bytes

MOST_HOSTS = 16_384
LONGEST_LIST = 4 << 20  # bytes, of a host file or of what squeue and kubectl list
LISTING_SECONDS = 30.0  # for squeue and kubectl to say who is there
_NAME = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9._-]{0,63}@)?[A-Za-z0-9:][A-Za-z0-9._:-]{0,252}")
_SLURM_JOB = re.compile(r"[0-9]{1,12}(?:[_+][0-9]{1,9})?")
_NAMESPACE = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_SELECTOR = re.compile(r"[A-Za-z0-9][A-Za-z0-9./_=!, ()-]{0,511}")
_WAY_OUT = "Say ssh:HOST,HOST, @HOSTFILE, srun:JOBID or kubectl:[NAMESPACE:]SELECTOR."


@dataclass(frozen=True)
class WayToHost:
    """How to run a command on one host: before its words come those of `lead`. `through_shell`: a shell over there puts the words
    together again, as that of ssh does. `trouble`: why nothing can be run on it."""

    host: str
    lead: tuple[str, ...]
    through_shell: bool = False
    trouble: str = ""

    def command(self, words: Sequence[str]) -> list[str]:
        return [*self.lead, *(map(shlex.quote, words) if self.through_shell else words)]


def ways_to(target: str, within: float) -> list[WayToHost]:
    """The way to each host that the target names. `within`: seconds that ssh may take to connect.

    WrongUse: it is no such target, or the program that leads there is not installed. NothingToInspect: it names nobody.
    """
    kind, found, names = target.partition(":")
    if target.startswith("@"):
        ways = _by_ssh(_in_file(Path(target[1:])), within)
    elif found and kind == "ssh":
        hosts = _in_file(Path(names[1:])) if names.startswith("@") else names.split(",")
        ways = _by_ssh([host.strip() for host in hosts if host.strip()], within)
    elif found and kind == "srun":
        ways = _by_srun(names)
    elif found and kind == "kubectl":
        ways = _by_kubectl(names)
    else:
        raise WrongUse(f"--on {target} names no hosts", way_out=_WAY_OUT)
    if not ways:
        raise NothingToInspect(f"--on {target} leads to no host", way_out=_WAY_OUT)
    if len(ways) > MOST_HOSTS:
        raise WrongUse(f"--on names {len(ways)} hosts, more than {MOST_HOSTS}", way_out="Look at a part of them.")
    return ways


def _in_file(path: Path) -> list[str]:
    """The first word of each line, as mpirun, DeepSpeed and pdsh write them: `gpu1 slots=8`, `gpu1:8`, `# a comment`."""
    lines = read_bytes(path, LONGEST_LIST).decode("utf-8", "replace").splitlines()
    words = [line.partition("#")[0].split() for line in lines]
    return [re.sub(r"^([^:]+):[0-9]+$", r"\1", found[0]) for found in words if found]


def _by_ssh(hosts: Sequence[str], within: float) -> list[WayToHost]:
    for host in hosts:
        _require(_NAME, host, "a host")
    _require_program("ssh")
    lead = ("ssh", "-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={max(1, int(within))}", "--")
    return [WayToHost(host, (*lead, host), through_shell=True) for host in dict.fromkeys(hosts)]


def _by_srun(job: str) -> list[WayToHost]:
    """One step a node, beside the steps that run: it takes nothing from them."""
    _require(_SLURM_JOB, job, "a SLURM job")
    _require_program("srun")
    nodes = _said(["squeue", "--noheader", "--jobs", job, "--format", "%N"]).split()
    hosts = [host for node in nodes for host in _said(["scontrol", "show", "hostnames", node]).split()]
    for host in hosts:
        _require(_NAME, host, "a node")
    lead = ("srun", "--jobid", job, "--overlap", "--nodes=1", "--ntasks=1", "--nodelist")
    return [WayToHost(host, (*lead, host)) for host in dict.fromkeys(hosts)]


def _by_kubectl(words: str) -> list[WayToHost]:
    """The pods with these labels. One that does not run yet, or no more, is part of the job all the same."""
    namespace, _, selector = words.rpartition(":")
    _require(_SELECTOR, selector, "a label selector")
    if namespace:
        _require(_NAMESPACE, namespace, "a namespace")
    _require_program("kubectl")
    where = ["--namespace", namespace] if namespace else []
    listed = _said(["kubectl", "get", "pods", *where, "--selector", selector, "--output", "json"])
    try:
        pods = [(pod["metadata"]["name"], pod["status"]["phase"]) for pod in json.loads(listed)["items"]]
    except (ValueError, KeyError, TypeError) as trouble:
        raise CouldNotLook("kubectl lists no pods that can be read", way_out="Try `kubectl get pods`.") from trouble
    ways = []
    for name, phase in pods:
        _require(_NAME, name, "a pod")
        why = "" if phase == "Running" else f"does not run (its phase is {phase})"
        ways.append(WayToHost(name, ("kubectl", "exec", *where, name, "--"), trouble=why))
    return ways


def _require(shape: re.Pattern[str], name: object, kind: str) -> None:
    if not isinstance(name, str) or not shape.fullmatch(name):
        raise WrongUse(f"{name!r} is not the name of {kind}", way_out=_WAY_OUT)


def _require_program(name: str) -> None:
    if shutil.which(name) is None:
        raise WrongUse(
            f"{name} is not installed here", way_out="Look from a machine that has it, or take another --on."
        )


def _said(command: list[str]) -> str:
    """What a command lists.

    CouldNotLook: it fails, or does not come back.
    """
    try:
        done = subprocess.run(
            command,
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LISTING_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as trouble:
        why = "did not answer" if isinstance(trouble, subprocess.TimeoutExpired) else str(trouble)
        raise CouldNotLook(f"{command[0]}: {why}", way_out=f"Try `{shlex.join(command)}`.") from trouble
    if done.returncode:
        why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1][:200]
        raise CouldNotLook(f"{command[0]}: {why}", way_out=f"Try `{shlex.join(command)}`.")
    return done.stdout[:LONGEST_LIST]
