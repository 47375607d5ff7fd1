"""Remedies for launch and environment."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

REMEDIES = (
    Remedy(
        slug="allow-ptrace",
        what="Allow distdoctor to read the process.",
        how="sudo sysctl kernel.yama.ptrace_scope=0",
        effect="the stacks of running jobs can be read",
        safety="changes no result",
        source="https://docs.kernel.org/admin-guide/LSM/Yama.html",
    ),
    Remedy(
        slug="same-environment",
        what="Run the same versions and the same code on every host.",
        how="pip install -r requirements.lock  # on each host, or one image for all",
        effect="ranks agree on what a collective is",
        safety="may change results on the ranks that differed",
        source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
    ),
    Remedy(
        slug="reachable-rendezvous",
        what="Make the rendezvous endpoint reachable from every host.",
        how="torchrun --rdzv-endpoint ADDRESS:PORT ...  # and GLOO_SOCKET_IFNAME=eth0 if a host has several",
        effect="ranks find each other",
        safety="changes no result",
        source="https://docs.pytorch.org/docs/stable/elastic/run.html",
    ),
    Remedy(
        slug="set-the-clocks",
        what="Let a time service set the clock of every host.",
        how="chronyc makestep; systemctl enable --now chronyd  # or timedatectl set-ntp true",
        effect="times of different hosts can be compared",
        safety="changes no result",
        source="https://chrony-project.org/documentation.html",
    ),
    Remedy(
        slug="free-port",
        what="End the process that holds the port, or use another port.",
        how="ss -ltnp 'sport = :29500'; torchrun --rdzv-endpoint HOST:29501 ...",
        effect="the job can start and never joins another job's store",
        safety="changes no result",
        source="https://docs.pytorch.org/docs/stable/elastic/run.html",
    ),
    Remedy(
        slug="more-shared-memory",
        what="Give the container more shared memory.",
        how="docker run --ipc=host ...  # or --shm-size=8g",
        effect="workers and NCCL have room for their buffers",
        safety="changes no result",
        source="https://docs.docker.com/reference/cli/docker/container/run/",
    ),
    Remedy(
        slug="report-the-recorder",
        what="Put back what the program replaced, or report the error.",
        how="distdoctor env --json  # with the words of the error, to the maintainers",
        effect="the rank is recorded to its end",
        safety="changes no result",
        source="SECURITY.md and CONTRIBUTING.md of distdoctor",
    ),
    Remedy(
        slug="remove-the-ignore",
        what="Correct the name in the comment, or take it out.",
        how="# distdoctor: ignore[CODE] -- reason  # `distdoctor rules` lists the codes",
        effect="a finding is accepted where somebody decided so, and nowhere else",
        safety="changes no result",
        source="docs: accepting a finding",
    ),
    Remedy(
        slug="without-this-host",
        what="Train without the host that computes or transfers wrongly.",
        how="dcgmi diag -r 3; memtester 1G 1  # and leave the host out of the job until they pass",
        effect="gradients are the sums that they should be",
        safety="changes no result of the other hosts",
        source="https://docs.nvidia.com/datacenter/dcgm/latest/user-guide/dcgm-diagnostics.html",
    ),
    Remedy(
        slug="fewer-threads",
        what="Give each rank its share of the cores.",
        how="export OMP_NUM_THREADS=$(( $(nproc) / RANKS ))",
        effect="threads of one step run at the same time",
        safety="CPU sums may differ in the last bits",
        source="https://docs.pytorch.org/docs/stable/notes/multiprocessing.html",
    ),
    Remedy(
        slug="backend-of-the-device",
        what="Use the backend of the device that the ranks have.",
        how='dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")',
        effect="the group is made",
        safety="gloo is slower than nccl; results are the same up to the order of sums",
        source="https://docs.pytorch.org/docs/stable/distributed.html",
    ),
    Remedy(
        slug="a-device-for-each-rank",
        what="Give each rank of a node a CUDA device of its own.",
        how='torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))  # before init_process_group',
        effect="NCCL accepts the group, and no device is shared",
        safety="changes no result",
        source="https://docs.pytorch.org/docs/stable/elastic/run.html",
    ),
)
