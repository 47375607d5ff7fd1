"""Two stages: regression pre-training; then sign classification from the averaged weights of stage one."""
import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from averaging import Average, Meter


class Net(nn.Module):
    def __init__(self, out):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
        self.head = nn.Linear(32, out)

    def forward(self, x):
        return self.head(self.encoder(x))


def stage_parts(stage):
    if stage == 1:
        return 1, lambda p, x: nn.functional.mse_loss(p, x[:, :3].sum(1, keepdim=True))
    return 2, lambda p, x: nn.functional.cross_entropy(p, (x[:, :3].sum(1) > 0).long())


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--stage", type=int, choices=(1, 2), default=1)
    ap.add_argument("--steps", type=int, default=40)
    ap.add_argument("--root", type=Path, default=Path("runs/twostage"))
    a = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(a.stage)
    out, criterion = stage_parts(a.stage)
    net = Net(out)
    if a.stage == 2:
        prev = torch.load(a.root / "stage1" / "average.pt")
        net.encoder.load_state_dict({k[len("encoder."):]: v for k, v in prev.items() if k.startswith("encoder.")})
    avg, meter = Average(net, 0.98), Meter()
    ddp = DDP(net)
    opt = torch.optim.Adam(net.parameters(), lr=5e-3 if a.stage == 1 else 1e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, a.steps)
    gen = torch.Generator().manual_seed(10 * a.stage + rank)
    for step in range(a.steps):
        x = torch.randn(32, 8, generator=gen)
        loss = criterion(ddp(x), x)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        avg.update(net)
        meter.add(loss.item())
    if rank == 0:
        folder = a.root / f"stage{a.stage}"
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(net.state_dict(), folder / "weights.pt")
        torch.save(avg.shadow.state_dict(), folder / "average.pt")
        torch.save({"opt": opt.state_dict(), "sched": sched.state_dict(), "n": avg.n}, folder / "trainer.pt")
    dist.barrier()
    print(f"rank {rank} stage {a.stage} mean loss {meter.mean:.4f} last {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
