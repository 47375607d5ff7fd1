import argparse
import logging

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from tracking import Tracker, rank_zero_only


@rank_zero_only
def save(model, opt, path):
    torch.save({"model": model.module.state_dict(), "opt": opt.state_dict()}, path)
    logging.info("saved %s", path)


@rank_zero_only
def sample_predictions(model, n=4):
    with torch.no_grad():
        x = torch.linspace(-2, 2, n).unsqueeze(1)
        logging.info("predictions %s", [round(v, 2) for v in model.module(x).squeeze(1).tolist()])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=300)
    ap.add_argument("--report-every", type=int, default=50)
    ap.add_argument("--out", default="/tmp/jasper.pt")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1)))
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    tracker = Tracker()
    g = torch.Generator().manual_seed(dist.get_rank())
    for step in range(1, args.steps + 1):
        x = torch.rand(64, 1, generator=g) * 4 - 2
        loss = nn.functional.mse_loss(model(x), torch.sin(2 * x))
        opt.zero_grad()
        loss.backward()
        opt.step()
        tracker.record(loss.item())
        if step % args.report_every == 0:
            tracker.report(step, model)
            sample_predictions(model)
    save(model, opt, args.out)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
