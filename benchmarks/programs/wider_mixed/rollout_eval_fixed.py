"""LoRA-less fine-tuning with a sampling evaluation in between, FSDP2."""
import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

EOS = 0


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.n = nn.LayerNorm(dim)
        self.gru = nn.GRU(dim, dim, batch_first=True)

    def forward(self, x):
        return x + self.gru(self.n(x))[0]


class LM(nn.Module):
    def __init__(self, vocab=24, dim=32, depth=2):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.blocks = nn.ModuleList(Block(dim) for _ in range(depth))
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        h = self.emb(ids)
        for b in self.blocks:
            h = b(h)
        return self.head(h)


@torch.no_grad()
def generate(model, prompt, max_new, generator):
    ids = prompt
    finished = False
    for _ in range(max_new):
        logits = model(ids)[:, -1]
        nxt = torch.multinomial(logits.softmax(-1), 1, generator=generator)
        if not finished:
            ids = torch.cat([ids, nxt], 1)
            finished = bool((nxt == EOS).all())
        going = torch.tensor(int(not finished))
        dist.all_reduce(going)
        if going.item() == 0:
            break
    return ids


def countdown(gen, n=8, length=14):
    start = torch.randint(6, 24, (n, 1), generator=gen)
    return (start - torch.arange(length)).clamp(min=EOS)


def evaluate(model, rank, max_new, step):
    model.eval()
    gen = torch.Generator().manual_seed(31 * step + rank)
    prompt = torch.randint(3, 24, (1, 1), generator=gen)
    out = generate(model, prompt, max_new, gen)
    length = torch.tensor([float(out.size(1))])
    dist.all_reduce(length)
    model.train()
    return length.item() / dist.get_world_size()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--eval-every", type=int, default=20)
    ap.add_argument("--max-new", type=int, default=30)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = LM()
    for b in model.blocks:
        fully_shard(b)
    fully_shard(model)
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(rank)
    for step in range(1, args.steps + 1):
        ids = countdown(gen)
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % args.eval_every == 0:
            mean_len = evaluate(model, rank, args.max_new, step)
            if rank == 0:
                print(f"step {step} loss {loss.item():.3f} mean length {mean_len:.1f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
