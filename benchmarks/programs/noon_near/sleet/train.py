import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from curriculum import CurriculumLink


class GRUTagger(nn.Module):
    def __init__(self, vocab=200, dim=96, classes=8):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, num_layers=2, batch_first=True)
        self.head = nn.Linear(dim, classes)

    def forward(self, ids):
        h, _ = self.rnn(self.embed(ids))
        return self.head(h.mean(1))


def make_data(n=3168, length=96, vocab=200, classes=8, seed=21):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, classes, (n,), generator=g)
    base = torch.randint(0, vocab, (n, length), generator=g)
    topic = y[:, None] * 25 + torch.randint(0, 25, (n, length), generator=g)
    return TensorDataset(torch.where(torch.rand(n, length, generator=g) < 0.4, topic, base), y)


class Trainer:
    def __init__(self, args):
        self.args = args
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(77)
        self.model = GRUTagger()
        self.opt = torch.optim.Adam(self.model.parameters(), lr=args.lr)
        data = make_data()
        self.sampler = DistributedSampler(data, self.world, self.rank, seed=5)
        self.loader = DataLoader(data, args.batch_size, sampler=self.sampler, drop_last=True)
        self.link = CurriculumLink(dist.distributed_c10d._get_default_store(), self.rank)
        self.micro_steps = 0
        self.opt_steps = 0

    def crop_length(self):
        if self.rank == 0:
            return self.link.publish(self.micro_steps // self.args.accum)
        return self.link.fetch(self.opt_steps)

    def reduce_and_step(self):
        flat = torch.cat([p.grad.reshape(-1) for p in self.model.parameters()])
        dist.all_reduce(flat)
        flat /= self.world
        offset = 0
        for p in self.model.parameters():
            p.grad.copy_(flat[offset:offset + p.numel()].view_as(p))
            offset += p.numel()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.opt.step()
        self.opt.zero_grad()
        self.opt_steps += 1

    def run_epoch(self, epoch):
        self.sampler.set_epoch(epoch)
        batches, accum = len(self.loader), self.args.accum
        for i, (ids, y) in enumerate(self.loader):
            if i % accum == 0:
                length = self.crop_length()
                window = min(accum, batches - i)
                running = 0.0
            loss = F.cross_entropy(self.model(ids[:, :length]), y) / window
            loss.backward()
            running += loss.item()
            self.micro_steps += 1
            if (i + 1) % accum == 0 or i + 1 == batches:
                self.reduce_and_step()
                self.link.note(running)
        if self.rank == 0:
            print(f"epoch {epoch} steps {self.opt_steps} length {length} loss {running:.4f}", flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=6)
    ap.add_argument("--batch-size", type=int, default=48)
    ap.add_argument("--accum", type=int, default=4)
    ap.add_argument("--lr", type=float, default=2e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    trainer = Trainer(args)
    for epoch in range(args.epochs):
        trainer.run_epoch(epoch)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
