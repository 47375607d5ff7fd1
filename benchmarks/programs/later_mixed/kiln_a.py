"""Self-training of a small character model: sample continuations, keep them, train on them."""
import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

VOCAB, EOS, BOS = 24, 0, 1


class Layer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.mix = nn.GRU(dim, dim, batch_first=True)
        self.up = nn.Linear(dim, dim)

    def forward(self, x):
        y, _ = self.mix(self.norm(x))
        return x + torch.tanh(self.up(y))


class CharLM(nn.Module):
    def __init__(self, dim=32, depth=2):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, dim)
        self.layers = nn.ModuleList(Layer(dim) for _ in range(depth))
        self.head = nn.Linear(dim, VOCAB)

    def forward(self, ids):
        x = self.emb(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


@torch.no_grad()
def rollout(model, prompts, max_new, gen):
    """Sample until every row has ended or max_new tokens were drawn."""
    ids = prompts
    ended = torch.zeros(len(ids), dtype=torch.bool)
    for _ in range(max_new):
        logits = model(ids)[:, -1]
        logits[:, EOS] += 2.0
        nxt = torch.multinomial(logits.softmax(-1), 1, generator=gen).squeeze(1)
        nxt = torch.where(ended, torch.full_like(nxt, EOS), nxt)
        ids = torch.cat([ids, nxt[:, None]], 1)
        ended |= nxt == EOS
        left = torch.tensor([float((~ended).sum())])
        dist.all_reduce(left)
        if left.item() == 0:
            break
    pad = max_new + prompts.size(1) - ids.size(1)
    return F.pad(ids, (0, pad), value=EOS)


def nll(model, ids):
    logits = model(ids[:, :-1])
    return F.cross_entropy(logits.reshape(-1, VOCAB), ids[:, 1:].reshape(-1))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=4)
    ap.add_argument("--updates", type=int, default=5)
    ap.add_argument("--max-new", type=int, default=40)
    ap.add_argument("--lr", type=float, default=2e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(11)
    model = CharLM()
    mesh = init_device_mesh("cpu", (world,))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    gen = torch.Generator().manual_seed(100 + rank)

    for rnd in range(args.rounds):
        model.eval()
        prompts = torch.randint(2, VOCAB, (2, 3), generator=gen)
        prompts[:, 0] = BOS
        ids = rollout(model, prompts, args.max_new, gen)
        model.train()
        for _ in range(args.updates):
            loss = nll(model, ids)
            opt.zero_grad()
            loss.backward()
            opt.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"round {rnd} nll {mean.item() / world:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
