import json
import os

import torch
import torch.distributed as dist
from torch.utils.data import IterableDataset, get_worker_info


def prepare_shards(root, n_shards=12, per_shard=64, dim=12):
    os.makedirs(root, exist_ok=True)
    g = torch.Generator().manual_seed(99)
    w = torch.randn(dim, 3, generator=g)
    for s in range(n_shards):
        with open(os.path.join(root, f"part-{s:03d}.jsonl"), "w") as f:
            for _ in range(per_shard):
                x = torch.randn(dim, generator=g)
                f.write(json.dumps({"x": [round(v, 4) for v in x.tolist()], "y": int((x @ w).argmax())}) + "\n")


class JsonlStream(IterableDataset):
    def __init__(self, root, seed=0):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.files = sorted(os.path.join(root, f) for f in os.listdir(root) if f.endswith(".jsonl"))
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def my_files(self):
        g = torch.Generator().manual_seed(self.seed + self.epoch)
        files = [self.files[i] for i in torch.randperm(len(self.files), generator=g).tolist()]
        files = files[self.rank::self.world]
        info = get_worker_info()
        if info is not None:
            files = files[info.id::info.num_workers]
        return files

    def __iter__(self):
        for path in self.my_files():
            with open(path) as f:
                for line in f:
                    row = json.loads(line)
                    yield torch.tensor(row["x"]), row["y"]
