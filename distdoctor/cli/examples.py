"""A command line or two for each command, as its help shows them."""

from __future__ import annotations

import inspect

EXAMPLES = {
    "check-grads": (
        "distdoctor check-grads --nproc 2 train.py",
        "distdoctor check-grads --against single --strategy fsdp",
    ),
    "check-memory": (
        "distdoctor check-memory --nproc 2 train.py",
        "distdoctor check-memory --strategy ddp --model gpt",
    ),
    "check-data": (
        "distdoctor check-data --nproc 2 train.py",
        "distdoctor check-data --loader train:make_loaders --nproc 4",
    ),
    "check-resume": ("distdoctor check-resume --at 20 --nproc 2 train.py",),
    "hang-dump": (
        "distdoctor hang-dump",
        "distdoctor hang-dump --pid 4711 --json",
        "distdoctor hang-dump --on srun:8123",
    ),
    "compare": ("distdoctor compare --strategies single,ddp,fsdp --nproc 2",),
    "advise": ("distdoctor advise --model gpt-7b --gpus 8x80GiB", "distdoctor advise --try no-sync --nproc 2"),
    "examine": (
        "distdoctor examine",
        "distdoctor examine dumps/ -o report.html",
        "distdoctor examine host-*.ddb",
        "cat job.log | distdoctor examine -",
    ),
    "lint": ("distdoctor lint train.py", "distdoctor lint --fix src/", "git diff --name-only | xargs distdoctor lint"),
    "bundle": ("distdoctor bundle -o job.ddb",),
    "watch": ("distdoctor watch", "distdoctor watch --once .distdoctor/runs/NAME"),
    "show": ("distdoctor show", "distdoctor show job.ddb"),
    "report": ("distdoctor report -o report.html", "distdoctor report --output-format markdown"),
    "runs": ("distdoctor runs", "distdoctor runs --prune --keep 5"),
    "diff": ("distdoctor diff .distdoctor/runs/before .distdoctor/runs/latest --slower-by 10",),
    "rules": ("distdoctor rules",),
    "explain": ("distdoctor explain missing-set-epoch",),
    "strategies": ("distdoctor strategies",),
    "plugins": ("distdoctor plugins",),
    "preflight": ("distdoctor preflight --nproc 4",),
    "env": ("distdoctor env", "distdoctor env --json"),
    "schema": ("distdoctor schema",),
    "completion": ("distdoctor completion bash >> ~/.bashrc",),
    "skill": ("distdoctor skill install",),
}


def with_examples(command: str, text: str) -> str:
    """The help of a command, with its examples below, a line each; as it is where they are there."""
    lines = EXAMPLES.get(command, ())
    below = "\n".join(("", "", "\b", *lines))
    return text if not lines or below in text else inspect.cleandoc(text) + below
