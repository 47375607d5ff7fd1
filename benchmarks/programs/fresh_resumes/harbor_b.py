import argparse
import json

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Tagger(nn.Module):
    def __init__(self, vocab=800, dim=128):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.mix = nn.GRU(dim, dim, batch_first=True)
        self.proj = nn.Linear(dim, 256)
        self.head = nn.Linear(256, 12)

    def forward(self, ids):
        h, _ = self.mix(self.emb(ids))
        z = F.gelu(self.proj(h))
        return self.head(z), z


class Trainer:
    def __init__(self, args):
        self.args = args
        self.rank = dist.get_rank()
        g = torch.Generator().manual_seed(8)
        ids = torch.randint(0, 800, (6144, 32), generator=g)
        tags = torch.randint(0, 12, (6144, 32), generator=g)
        data = TensorDataset(ids, tags)
        self.sampler = DistributedSampler(data, shuffle=True, drop_last=True)
        self.loader = DataLoader(data, batch_size=96, sampler=self.sampler, drop_last=True)
        self.model = DDP(Tagger())
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.pending = []
        self.step = 0

    def write_report(self):
        rows = [{"step": s, "norm": z.norm().item()} for s, z in self.pending]
        with open("activations.jsonl", "a") as f:
            for row in rows:
                f.write(json.dumps(row) + "\n")

    def after_step(self, z):
        self.pending.append((self.step, z.detach().clone()))
        if self.step % self.args.every == 0 and self.rank == 0:
            self.write_report()
            self.pending = []

    def fit(self):
        for epoch in range(self.args.epochs):
            self.sampler.set_epoch(epoch)
            for ids, tags in self.loader:
                self.opt.zero_grad(set_to_none=True)
                logits, z = self.model(ids)
                loss = F.cross_entropy(logits.flatten(0, 1), tags.flatten())
                loss.backward()
                self.opt.step()
                self.step += 1
                self.after_step(z)
            if self.rank == 0:
                print(epoch, self.step, flush=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--every", type=int, default=6)
    args = p.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    Trainer(args).fit()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
