import argparse
import logging

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP

from clinics import clinic_batches

log = logging.getLogger("narmada")


class RiskModel(nn.Module):
    def __init__(self, features, hidden):
        super().__init__()
        self.inp = nn.Linear(features, hidden)
        self.cell = nn.GRUCell(hidden, hidden)
        self.head = nn.Linear(hidden, 1)

    def forward(self, visits):
        h = torch.zeros(visits.size(0), self.cell.hidden_size)
        for t in range(visits.size(1)):
            h = self.cell(torch.relu(self.inp(visits[:, t])), h)
        return self.head(h).squeeze(-1)


def auc_like(model, batches):
    """Share of correctly ordered pairs inside the batches, pooled over the clinics."""
    tally = torch.zeros(2, dtype=torch.float64)
    with torch.no_grad():
        for x, y in batches:
            s = model(x)
            pos, neg = s[y > 0.5], s[y < 0.5]
            if len(pos) and len(neg):
                tally += torch.tensor([float((pos[:, None] > neg[None]).sum()), float(len(pos) * len(neg))], dtype=torch.float64)
    dist.all_reduce(tally)
    return (tally[0] / tally[1]).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--patients", type=int, nargs="+", default=[420, 660, 300], help="per clinic")
    ap.add_argument("--features", type=int, default=10)
    ap.add_argument("--visits", type=int, default=7)
    ap.add_argument("--hidden", type=int, default=40)
    ap.add_argument("--batch", type=int, default=12)
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--lr", type=float, default=0.15)
    ap.add_argument("--seed", type=int, default=80)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO, format=f"clinic {rank}: %(message)s")
    torch.manual_seed(args.seed)
    model = DDP(RiskModel(args.features, args.hidden))
    opt = torch.optim.SGD(model.parameters(), lr=args.lr)
    patients = args.patients[rank % len(args.patients)]
    log.info("%d patients", patients)

    for epoch in range(args.epochs):
        steps, total = 0, 0.0
        with Join([model], enable=True, throw_on_early_termination=False):
            for x, y in clinic_batches(patients, args, rank, epoch, train=True):
                loss = nn.functional.binary_cross_entropy_with_logits(model(x), y)
                opt.zero_grad()
                loss.backward()
                opt.step()
                steps, total = steps + 1, total + loss.item()
        log.info("epoch %d: %d steps, loss %.4f", epoch, steps, total / steps)
        quality = auc_like(model.module, clinic_batches(patients, args, rank, 0, train=False))
        if rank == 0:
            log.info("epoch %d pooled ordering %.4f", epoch, quality)
    log.info("weights %.9f", sum(float(p.detach().double().sum()) for p in model.parameters()))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
