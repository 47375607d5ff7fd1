"""Two-tower retrieval: questions and passages are embedded apart and matched in the batch."""
import argparse
import logging
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

logger = logging.getLogger("retrieval")


class Pairs(Dataset):
    def __init__(self, n, vocab=200, length=12, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.q = torch.randint(0, vocab, (n, length), generator=g)
        shuffle = torch.argsort(torch.rand(n, length, generator=g), dim=1)
        self.p = (torch.gather(self.q, 1, shuffle) * 7 + 3) % vocab
        noise = torch.rand(n, length, generator=g) < 0.3
        self.p = torch.where(noise, torch.randint(0, vocab, (n, length), generator=g), self.p)

    def __len__(self):
        return self.q.size(0)

    def __getitem__(self, i):
        return self.q[i], self.p[i]


class Tower(nn.Module):
    def __init__(self, vocab=200, width=48, out=32):
        super().__init__()
        self.emb = nn.EmbeddingBag(vocab, width, mode="mean")
        self.proj = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.LayerNorm(64), nn.Linear(64, out))

    def forward(self, ids):
        return F.normalize(self.proj(self.emb(ids)), dim=-1)


class Retriever(nn.Module):
    def __init__(self, temperature=0.07):
        super().__init__()
        self.question = Tower()
        self.passage = Tower()
        self.temperature = temperature

    def forward(self, q, p):
        sim = self.question(q) @ self.passage(p).t() / self.temperature
        target = torch.arange(q.size(0))
        return 0.5 * (F.cross_entropy(sim, target) + F.cross_entropy(sim.t(), target))


def distribute(model):
    model.question = DDP(model.question)
    return model


@torch.no_grad()
def recall_at_1(model, pairs):
    question = model.question.module if isinstance(model.question, DDP) else model.question
    q, p = question(pairs.q), model.passage(pairs.p)
    return ((q @ p.t()).argmax(1) == torch.arange(len(pairs))).float().mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=13)
    parser.add_argument("--out", default="out_mjosa")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.ERROR, format="%(message)s")
    torch.manual_seed(args.seed)
    model = distribute(Retriever())
    pairs, held = Pairs(1024, seed=1), Pairs(128, seed=2)
    sampler = DistributedSampler(pairs, seed=args.seed, drop_last=True)
    loader = DataLoader(pairs, args.batch_size, sampler=sampler, drop_last=True)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, args.lr, total_steps=args.epochs * len(loader))

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        running = torch.zeros(())
        for q, p in loader:
            opt.zero_grad(set_to_none=True)
            loss = model(q, p)
            loss.backward()
            opt.step()
            sched.step()
            running += loss.detach()
        dist.all_reduce(running)
        if rank == 0:
            logger.info("epoch %d loss %.4f recall@1 %.3f", epoch,
                        running.item() / len(loader) / dist.get_world_size(), recall_at_1(model, held))
    if rank == 0:
        os.makedirs(args.out, exist_ok=True)
        state = {k.replace(".module.", "."): v for k, v in model.state_dict().items()}
        torch.save(state, os.path.join(args.out, "retriever.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
