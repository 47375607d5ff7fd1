import argparse

import torch
import torch.distributed as dist
from torch import nn

from moe import ExpertLayer


class TopicLM(nn.Module):
    def __init__(self, vocab, dim, topic_size, rank, world):
        super().__init__()
        torch.manual_seed(0)
        self.tok = nn.Embedding(vocab, dim)
        self.gru = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, vocab)
        self.moe = ExpertLayer(dim, 4 * dim, topic_size, rank, world)

    def forward(self, ids):
        h, _ = self.gru(self.tok(ids))
        return self.out(self.moe(h, ids))

    def shared_parameters(self):
        return [p for n, p in self.named_parameters() if not n.startswith("moe.expert")]

    def expert_parameters(self):
        return list(self.moe.expert.parameters())


class Documents:
    def __init__(self, topics, topic_size, rank):
        self.topics, self.size = topics, topic_size
        self.gen = torch.Generator().manual_seed(40 + rank)

    def batch(self, docs, length):
        topic = torch.randint(0, self.topics, (docs, 1), generator=self.gen)
        start = torch.randint(0, self.size, (docs, 1), generator=self.gen)
        stride = torch.randint(1, 4, (docs, 1), generator=self.gen)
        return topic * self.size + (start + stride * torch.arange(length + 1)) % self.size


@torch.no_grad()
def sync(model, world):
    for p in model.parameters():
        if p.grad is None:
            p.grad = torch.zeros_like(p)
    shared = [p.grad for p in model.shared_parameters()]
    flat = torch.cat([g.reshape(-1) for g in shared])
    dist.all_reduce(flat)
    flat /= world
    at = 0
    for g in shared:
        g.copy_(flat[at:at + g.numel()].view_as(g))
        at += g.numel()
    for p in model.expert_parameters():
        p.grad /= world


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=160)
    p.add_argument("--docs", type=int, default=4)
    p.add_argument("--length", type=int, default=64)
    p.add_argument("--dim", type=int, default=64)
    p.add_argument("--topics", type=int, default=6)
    p.add_argument("--topic-size", type=int, default=48)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    vocab = args.topics * args.topic_size
    model = TopicLM(vocab, args.dim, args.topic_size, rank, world)
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    docs = Documents(args.topics, args.topic_size, rank)
    for step in range(args.steps):
        ids = docs.batch(args.docs, args.length)
        loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        opt.zero_grad(set_to_none=True)
        loss.backward()
        sync(model, world)
        opt.step()
        if rank == 0 and step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
