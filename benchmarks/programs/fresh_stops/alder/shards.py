"""Index of token windows, built once and kept on the scratch disk of the job."""
import json
import os
import tempfile
import time

import numpy as np
import torch
import torch.distributed as dist


def scratch():
    job = os.environ.get("SLURM_JOB_ID") or f"{os.getppid()}-{os.environ.get('MASTER_PORT', '0')}"
    path = os.path.join(tempfile.gettempdir(), f"windows-{job}")
    os.makedirs(path, exist_ok=True)
    return path


def corpus(seed, n=40_000, vocab=40):
    rng = np.random.default_rng(seed)
    step = rng.integers(1, 4, n)
    return np.cumsum(step) % vocab


def build(path, tokens, window):
    starts = np.arange(0, len(tokens) - window - 1, window // 2)
    rng = np.random.default_rng(0)
    rng.shuffle(starts)
    tmp = path + ".part"
    with open(tmp, "w") as f:
        json.dump({"window": window, "starts": starts.tolist()}, f)
    os.replace(tmp, path)


def load_index(tokens, window):
    path = os.path.join(scratch(), f"w{window}.json")
    if dist.get_rank() == 0 and not os.path.exists(path):
        began = time.time()
        build(path, tokens, window)
        print(f"index {path} built in {time.time() - began:.2f}s", flush=True)
    dist.barrier()
    with open(path) as f:
        return json.load(f)["starts"]


class Windows(torch.utils.data.Dataset):
    def __init__(self, seed, window):
        self.tokens = corpus(seed)
        self.window = window
        self.starts = load_index(self.tokens, window)

    def __len__(self):
        return len(self.starts)

    def __getitem__(self, i):
        s = self.starts[i]
        piece = torch.as_tensor(self.tokens[s:s + self.window + 1])
        return piece[:-1], piece[1:]
