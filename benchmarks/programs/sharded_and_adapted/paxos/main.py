"""Personalised federated learning: every site keeps its own output head, the encoder is shared.

Sites have different numbers of records and differently calibrated sensors; the
encoder is averaged in proportion to the number of records after every round.
"""
import argparse
import json
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

SITE_RECORDS = [480, 320, 640]


class SiteData:
    def __init__(self, site, dim=20, outputs=3):
        common = torch.Generator().manual_seed(70)
        private = torch.Generator().manual_seed(700 + site)
        mixing = torch.randn(dim, 12, generator=common)
        readout = torch.randn(12, outputs, generator=private)
        offset = torch.randn(outputs, generator=private)

        def draw(n):
            x = torch.randn(n, dim, generator=private)
            y = torch.tanh(x @ mixing / 4) @ readout + offset + 0.05 * torch.randn(n, outputs, generator=private)
            return x, y

        self.train = draw(SITE_RECORDS[site])
        self.test = draw(120)


class PersonalModel(nn.Module):
    def __init__(self, dim=20, width=64, outputs=3):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(dim, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.head = nn.Linear(width, outputs)

    def forward(self, x):
        return self.head(self.encoder(x))


class Site:
    """One participant; owns data, head and local optimizer."""

    def __init__(self, args):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.args = args
        torch.manual_seed(args.seed)
        self.model = PersonalModel()
        head_rng = torch.Generator().manual_seed(args.seed + 1 + self.rank)
        with torch.no_grad():
            self.model.head.weight.copy_(0.1 * torch.randn(self.model.head.weight.shape, generator=head_rng))
            self.model.head.bias.zero_()
        self.data = SiteData(self.rank % len(SITE_RECORDS))
        self.order = torch.Generator().manual_seed(args.seed + 50 + self.rank)

    def optimizers(self, round_index):
        lr = self.args.lr * self.args.decay ** round_index
        return (torch.optim.SGD(self.model.encoder.parameters(), lr=lr, momentum=0.5),
                torch.optim.SGD(self.model.head.parameters(), lr=2 * lr, momentum=0.5))

    def fit_round(self, round_index):
        x, y = self.data.train
        body, head = self.optimizers(round_index)
        total, seen = 0.0, 0
        for _ in range(self.args.local_epochs):
            for idx in torch.randperm(len(x), generator=self.order).split(self.args.batch):
                loss = F.mse_loss(self.model(x[idx]), y[idx])
                body.zero_grad(set_to_none=True)
                head.zero_grad(set_to_none=True)
                loss.backward()
                body.step()
                head.step()
                total += loss.item() * len(idx)
                seen += len(idx)
        return total / seen

    @torch.no_grad()
    def federate(self):
        weight = float(len(self.data.train[0]))
        shares = torch.tensor([weight], dtype=torch.float64)
        dist.all_reduce(shares)
        scale = weight / shares.item()
        flat = nn.utils.parameters_to_vector(self.model.encoder.parameters()) * scale
        dist.all_reduce(flat)
        nn.utils.vector_to_parameters(flat, self.model.encoder.parameters())

    @torch.no_grad()
    def score(self):
        x, y = self.data.test
        error = F.mse_loss(self.model(x), y, reduction="sum").item()
        mine = torch.tensor([error, float(y.numel())], dtype=torch.float64)
        table = [torch.zeros_like(mine) for _ in range(self.world)]
        dist.all_gather(table, mine)
        per_site = [(t[0] / t[1]).item() for t in table]
        whole = sum(t[0] for t in table) / sum(t[1] for t in table)
        return per_site, whole.item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=8)
    ap.add_argument("--local-epochs", type=int, default=2)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--lr", type=float, default=0.05)
    ap.add_argument("--decay", type=float, default=0.93)
    ap.add_argument("--seed", type=int, default=61)
    ap.add_argument("--out", default="runs/paxos")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    site = Site(args)
    table = []
    for r in range(args.rounds):
        local = site.fit_round(r)
        site.federate()
        per_site, whole = site.score()
        table.append({"round": r, "sites": per_site, "all": whole})
        if site.rank == 0:
            shown = " ".join(f"{v:.4f}" for v in per_site)
            print(f"round {r} local {local:.4f} | site errors {shown} | all {whole:.4f}", flush=True)
    os.makedirs(args.out, exist_ok=True)
    torch.save({"head": site.model.head.state_dict()}, os.path.join(args.out, f"head{site.rank}.pt"))
    if site.rank == 0:
        torch.save({"encoder": site.model.encoder.state_dict()}, os.path.join(args.out, "encoder.pt"))
        with open(os.path.join(args.out, "rounds.json"), "w") as fh:
            json.dump(table, fh)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
