"""Why the kernel refuses to let us look into a process, and the exact setting that allows it."""

from __future__ import annotations

import os
from pathlib import Path

_CAP_SYS_PTRACE = 19  # linux/capability.h


def way_in(pid: int) -> str:
    """What to change so that the stacks of this process can be read."""
    owner, target = _owners(pid)
    again = f"distdoctor hang-dump --pid {pid}"
    if may_trace():
        return f"a security module (AppArmor, SELinux) forbids it: ask for ptrace read of pid {pid}, then `{again}`"
    if os.geteuid() == 0:
        return (
            "this container has no CAP_SYS_PTRACE: start it with `docker run --cap-add SYS_PTRACE`, in Kubernetes with "
            "securityContext.capabilities.add: [SYS_PTRACE]"
        )
    if target is not None and target != os.geteuid():
        return f"the process belongs to uid {target}, you are uid {os.geteuid()}: `sudo -u '#{target}' {again}` or `sudo {again}`"
    if owner == 0 and target == os.geteuid():
        return (
            f"the process has made itself undumpable (prctl PR_SET_DUMPABLE 0, or it changed its user): `sudo {again}`, "
            "or let it call prctl(PR_SET_DUMPABLE, 1)"
        )
    scope = yama_scope()
    if scope == 3:
        return "kernel.yama.ptrace_scope is 3, which only a reboot changes: set it to 0 in /etc/sysctl.d and reboot"
    if scope == 2:
        return f"kernel.yama.ptrace_scope is 2: `sudo {again}`, or `sudo sysctl kernel.yama.ptrace_scope=0`"
    if scope == 1:
        return f"kernel.yama.ptrace_scope is 1: `sudo sysctl kernel.yama.ptrace_scope=0`, or `sudo {again}`"
    return f"`sudo {again}`; in a container add the capability SYS_PTRACE"


def yama_scope() -> int:
    """kernel.yama.ptrace_scope, 0 where there is no Yama."""
    try:
        return int(Path("/proc/sys/kernel/yama/ptrace_scope").read_text())
    except (OSError, ValueError):
        return 0


def may_trace() -> bool:
    """Whether we hold CAP_SYS_PTRACE."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("CapEff:"):
                return bool(int(line.split()[1], 16) >> _CAP_SYS_PTRACE & 1)
    except (OSError, ValueError):
        pass
    return False


def _owners(pid: int) -> tuple[int | None, int | None]:
    """(who owns /proc/PID, whom the process runs as): root owns it where the process is undumpable."""
    try:
        owner = os.stat(f"/proc/{pid}").st_uid
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("Uid:"):
                return owner, int(line.split()[2])
    except (OSError, ValueError):
        pass
    return None, None
