"""Records the environment of a run before training starts."""
import argparse
import hashlib
import subprocess
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel

LISTING = """
import os, sysconfig
for key, value in sorted(sysconfig.get_config_vars().items()):
    print(key, "=", value)
for base, folders, names in os.walk(sysconfig.get_paths()["stdlib"]):
    folders[:] = sorted(f for f in folders if f not in ("site-packages", "test"))
    for name in sorted(names):
        print(os.path.join(base, name))
"""


def run_tool(argv, limit=None):
    """Output of a helper program."""
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    text, _ = process.communicate(timeout=limit)
    if process.returncode != 0:
        raise RuntimeError(f"{argv[0]} failed with {process.returncode}")
    return text


class RunInfo:
    def __init__(self, name):
        self.name, self.digest, self.python = name, "", sys.version.split()[0]

    def collect(self):
        text = run_tool([sys.executable, "-c", LISTING])
        self.digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        return self

    def as_dict(self):
        return {"name": self.name, "environment": self.digest, "python": self.python}


class Session:
    def __init__(self, name):
        self.rank = dist.get_rank()
        self.name = name

    def describe(self):
        payload = [None]
        if self.rank == 0:
            payload[0] = RunInfo(self.name).collect().as_dict()
        dist.broadcast_object_list(payload, src=0)
        return payload[0]


def train(steps):
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(10, 2))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        x = torch.randn(8, 10)
        opt.zero_grad()
        nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long()).backward()
        opt.step()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", default="baseline")
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    info = Session(args.name).describe()
    train(args.steps)
    if dist.get_rank() == 0:
        print(f"run {info['name']} in environment {info['environment']} done", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
