"""Small language model with an adaptive entropy bonus."""
import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class ZipfText:
    """Bigram text over a Zipf vocabulary."""

    def __init__(self, vocab, seed):
        g = torch.Generator().manual_seed(seed)
        self.freq = 1.0 / torch.arange(1, vocab + 1).float()
        self.next = torch.randint(0, vocab, (vocab, 4), generator=g)
        self.vocab = vocab

    def sample(self, rows, length, gen):
        tok = torch.multinomial(self.freq, rows, replacement=True, generator=gen)
        out = [tok]
        for _ in range(length - 1):
            follow = self.next[tok, torch.randint(0, 4, (rows,), generator=gen)]
            fresh = torch.multinomial(self.freq, rows, replacement=True, generator=gen)
            tok = torch.where(torch.rand(rows, generator=gen) < 0.8, follow, fresh)
            out.append(tok)
        return torch.stack(out, 1)


class LM(nn.Module):
    def __init__(self, vocab, d):
        super().__init__()
        self.tok = nn.Embedding(vocab, d)
        self.conv = nn.Conv1d(d, 2 * d, 3)
        self.out = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, vocab))

    def forward(self, x):
        h = F.pad(self.tok(x).transpose(1, 2), (2, 0))
        return self.out(F.glu(self.conv(h), dim=1).transpose(1, 2))


class EntropyKeeper:
    """Follows the mean entropy of the predictions and sets label smoothing by it."""

    def __init__(self, goal, momentum=0.95):
        self.goal, self.momentum = goal, momentum
        self.level = None
        self.smoothing = 0.05

    @torch.no_grad()
    def observe(self, logits):
        logp = logits.log_softmax(-1)
        entropy = -(logp.exp() * logp).sum(-1).mean()
        if self.level is None:
            self.level = entropy
        else:
            self.level = self.momentum * self.level + (1 - self.momentum) * entropy
        return self.level

    def adjust(self, world):
        level = self.level.detach().clone()
        dist.all_reduce(level)
        gap = self.goal - (level / world).item()
        self.smoothing = min(0.2, max(0.0, self.smoothing + 0.01 * gap))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=120)
    ap.add_argument("--vocab", type=int, default=512)
    ap.add_argument("--dim", type=int, default=48)
    ap.add_argument("--rows", type=int, default=12)
    ap.add_argument("--length", type=int, default=33)
    ap.add_argument("--goal", type=float, default=4.0)
    ap.add_argument("--seed", type=int, default=6)
    ap.add_argument("--out", type=Path, default=Path(__file__).resolve().parent / "out")
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    text = ZipfText(args.vocab, args.seed)
    gen = torch.Generator().manual_seed(args.seed + 900 * (rank + 1))
    model = DDP(LM(args.vocab, args.dim))
    opt = torch.optim.AdamW(model.parameters(), lr=4e-3)
    keeper = EntropyKeeper(args.goal)

    for step in range(1, args.steps + 1):
        rows = text.sample(args.rows, args.length, gen)
        logits = model(rows[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten(), label_smoothing=keeper.smoothing)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        keeper.observe(logits)
        if step % 10 == 0:
            keeper.adjust(world)
        if step % 40 == 0:
            nll = loss.detach().clone()
            dist.all_reduce(nll)
            if rank == 0:
                print(f"step {step} loss {nll / world:.4f} entropy {keeper.level.item():.3f} "
                      f"smoothing {keeper.smoothing:.3f}", flush=True)
                args.out.mkdir(parents=True, exist_ok=True)
                torch.save({"model": model.module.state_dict(), "step": step}, args.out / "lm.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
