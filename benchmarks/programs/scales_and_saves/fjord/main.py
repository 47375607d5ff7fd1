"""Water-level denoiser with warm restarts; every process takes part in the (asynchronous) sharded save.

The learning rate jumps back up at each restart, and the loss with it.
"""
import argparse
import shutil
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def levels(n, seed, length=48):
    g = torch.Generator().manual_seed(seed)
    clean = torch.randn(n, length, generator=g).cumsum(1) / 4
    return TensorDataset(clean + 0.5 * torch.randn(n, length, generator=g), clean)


class Denoiser(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.net = nn.Sequential(nn.Conv1d(1, width, 7, padding=3), nn.SiLU(),
                                 nn.Conv1d(width, width, 7, padding=3), nn.SiLU(),
                                 nn.Conv1d(width, 1, 7, padding=3))

    def forward(self, x):
        return x + self.net(x[:, None])[:, 0]


class Snapshots:
    def __init__(self, folder, keep):
        self.folder, self.keep = folder, keep
        self.group = dist.new_group(backend="gloo")   # the background thread talks here
        self.pending, self.name = None, None

    def begin(self, epoch, state):
        self.finish()
        copy = {k: {n: t.detach().clone() if torch.is_tensor(t) else t for n, t in part.items()}
                for k, part in state.items()}
        self.name = f"epoch{epoch:03d}"
        self.pending = dcp.async_save(copy, checkpoint_id=str(self.folder / self.name),
                                      process_group=self.group)

    def finish(self):
        if self.pending is None:
            return
        self.pending.result()
        self.pending = None
        dist.barrier()
        if dist.get_rank() == 0:
            (self.folder / "latest.tmp").write_text(self.name)
            (self.folder / "latest.tmp").replace(self.folder / "latest")
            for old in sorted(self.folder.glob("epoch*"))[:-self.keep]:
                shutil.rmtree(old)


def flatten(opt):
    out = {}
    for i, st in opt.state_dict()["state"].items():
        for k, v in st.items():
            out[f"{i}.{k}"] = v
    return out


@torch.no_grad()
def error(net, data, rank, world):
    x, y = (t[rank::world] for t in data.tensors)
    s = torch.tensor([(net(x) - y).square().sum().item(), y.numel()], dtype=torch.float64)
    dist.all_reduce(s)
    return (s[0] / s[1]).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=9)
    ap.add_argument("--cycle", type=int, default=3)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--folder", type=Path, default=Path("fjord_ckpt"))
    args = ap.parse_args()
    dist.init_process_group("cpu:gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        args.folder.mkdir(parents=True, exist_ok=True)
    dist.barrier()
    torch.manual_seed(99)
    net = DDP(Denoiser())
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    sched = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, T_0=args.cycle, eta_min=1e-4)
    train, val = levels(1024, 1), levels(256, 2)
    sampler = DistributedSampler(train, seed=7)
    loader = DataLoader(train, args.batch, sampler=sampler, drop_last=True)
    saver = Snapshots(args.folder, keep=2)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for i, (x, y) in enumerate(loader):
            loss = nn.functional.mse_loss(net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step(epoch + i / len(loader))
        mse = error(net.module, val, rank, world)
        if rank == 0:
            print(f"epoch {epoch} mse {mse:.5f} lr {opt.param_groups[0]['lr']:.5f}", flush=True)
        saver.begin(epoch, {"net": net.module.state_dict(), "opt": flatten(opt)})
    saver.finish()

    probe = Denoiser()
    state = {"net": probe.state_dict()}
    dcp.load(state, checkpoint_id=str(args.folder / f"epoch{args.epochs - 1:03d}"))
    probe.load_state_dict(state["net"])
    again = error(probe, val, rank, world)
    if rank == 0:
        print(f"read back: mse {again:.5f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
