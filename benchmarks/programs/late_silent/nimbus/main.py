"""Personalised keyboards: a common body for all clients, a head that never leaves its client (FedPer)."""
import argparse
import os
from pathlib import Path

import torch
import torch.nn.functional as F
from lightning.fabric import Fabric
from torch import nn


class Body(nn.Module):
    def __init__(self, symbols, d):
        super().__init__()
        self.emb = nn.Embedding(symbols, d)
        self.rnn = nn.GRU(d, d, batch_first=True)

    def forward(self, x):
        return self.rnn(self.emb(x))[0]


class Typist:
    """A client's text: common digram habits and some of its own."""

    def __init__(self, symbols, number):
        common = torch.rand(symbols, symbols, generator=torch.Generator().manual_seed(1)).pow(5)
        own = torch.rand(symbols, symbols, generator=torch.Generator().manual_seed(50 + number)).pow(8)
        table = common + 0.8 * own
        self.table = table / table.sum(1, keepdim=True)
        self.gen = torch.Generator().manual_seed(900 + number)

    def sample(self, n, length):
        out = [torch.randint(0, len(self.table), (n,), generator=self.gen)]
        for _ in range(length):
            out.append(torch.multinomial(self.table[out[-1]], 1, generator=self.gen).squeeze(1))
        return torch.stack(out, 1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=120)
    ap.add_argument("--batch", type=int, default=24)
    ap.add_argument("--length", type=int, default=12)
    ap.add_argument("--symbols", type=int, default=20)
    ap.add_argument("--seed", type=int, default=37)
    ap.add_argument("--out", type=Path, default=Path(__file__).resolve().parent / "out")
    args = ap.parse_args()
    fabric = Fabric(accelerator="cpu", devices=int(os.environ.get("WORLD_SIZE", 1)), strategy="ddp")
    fabric.launch()
    client = fabric.global_rank
    torch.manual_seed(args.seed)
    body = Body(args.symbols, 40)
    torch.manual_seed(args.seed + 100 + client)
    head = nn.Linear(40, args.symbols)

    body_opt = torch.optim.Adam(body.parameters(), lr=4e-3)
    body, body_opt = fabric.setup(body, body_opt)
    head_opt = torch.optim.Adam(head.parameters(), lr=4e-3)
    typist = Typist(args.symbols, client)

    for step in range(1, args.steps + 1):
        text = typist.sample(args.batch, args.length)
        loss = F.cross_entropy(head(body(text[:, :-1])).flatten(0, 1), text[:, 1:].flatten())
        body_opt.zero_grad()
        head_opt.zero_grad()
        fabric.backward(loss)
        body_opt.step()
        head_opt.step()
        if step % 30 == 0:
            each = fabric.all_gather(loss.detach()).flatten().tolist()
            fabric.print(f"step {step} nll per client " + " ".join(f"{v:.3f}" for v in each))
    args.out.mkdir(parents=True, exist_ok=True)
    torch.save(head.state_dict(), args.out / f"head-{client}.pt")
    if fabric.is_global_zero:
        torch.save(body.state_dict(), args.out / "body.pt")
    fabric.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
