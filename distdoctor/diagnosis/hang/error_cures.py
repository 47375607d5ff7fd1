"""What mends an error, for errors whose words say what is behind them. Words of torch 2.1-2.15, CUDA, HIP and vLLM."""

from __future__ import annotations

import re

_CURES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(words, re.IGNORECASE), cure)
    for words, cure in (
        (
            r"iostream error|\bunexpected pos \d|PytorchStreamWriter failed writing|No space left on device|Disk quota exceeded",
            "look at df and quota where it writes: torch's writer says so when a file cannot grow; keep fewer checkpoints",
        ),
        (
            r"DataLoader worker \(pid.{0,30}\) is killed by signal: Killed",
            "look at dmesg: the kernel kills loader workers when the host's memory is used up; start fewer, or cache less",
        ),
        (
            r"mark a variable ready only once|marked as ready twice",
            "a gradient came twice in one backward: checkpoint(..., use_reentrant=False), or DDP(..., static_graph=True) where "
            "the graph is the same in each step; find_unused_parameters does not help",
        ),
        (
            r"device-side assert|Assertion `[^`]{1,200}` failed",
            "an index lies outside of its table: compare token ids, positions and labels with the sizes of embeddings and the "
            "number of classes; on the CPU, or with CUDA_LAUNCH_BLOCKING=1, the error names its line",
        ),
        (
            r"illegal memory access|misaligned address|unspecified launch failure|Memory access fault by GPU",
            "CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer names the kernel: errors are reported later than they happen, and all "
            "that follows in that process says nothing",
        ),
        (
            r"expects all elements of std >= 0|probability tensor contains either|but found invalid values|"
            r"(?:input|value)s? contains? (?:NaN|inf)",
            "a value is most likely NaN or infinite: `distdoctor run` names the first rank and layer",
        ),
        (
            r"no socket interface found|Bootstrap : no ",
            "NCCL found no network interface to meet on: name one that is up and reaches the other hosts in NCCL_SOCKET_IFNAME "
            "(`ip -br addr` lists them; a value that matches none does this, too)",
        ),
        (
            r"socket\w{0,30}: connect(?: to \S{1,80})? (?:returned|failed).{0,40}(?:refused|timed out|no route|unreachable)|"
            r"Connection refused, exceeded error retry",
            "NCCL's connection to another host was refused: name the interface that the hosts share in NCCL_SOCKET_IFNAME, open "
            "the ports between them to each other, and see whether the process that listens there still lives",
        ),
        (
            r"size mismatch for ",
            "the checkpoint is of a model of other sizes: build it with the configuration and vocabulary that were saved",
        ),
        (
            r"Free memory on device .{0,80} is less than desired GPU memory utilization",
            "somebody else holds memory of that device: see nvidia-smi, end what was left over, or ask for less "
            "(gpu_memory_utilization)",
        ),
    )
)


def cure_of(words: str) -> str:
    """What to do about an error; "" where its words do not say it."""
    return next((cure for pattern, cure in _CURES if pattern.search(words)), "")
