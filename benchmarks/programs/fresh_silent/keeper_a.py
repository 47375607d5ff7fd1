import argparse
import json
import os
import shutil
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

ROOT = Path.cwd() / ("out_" + Path(__file__).stem)


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=12)
    p.add_argument("--save-every", type=int, default=2)
    p.add_argument("--keep", type=int, default=2)
    p.add_argument("--resume", action="store_true")
    return p.parse_args()


def build_dataset(n=512, dim=24):
    g = torch.Generator().manual_seed(3)
    x = torch.randn(n, dim, generator=g)
    w = torch.randn(dim, 1, generator=g)
    return TensorDataset(x, x @ w + 0.05 * torch.randn(n, 1, generator=g))


class CheckpointStore:
    def __init__(self, root, keep):
        self.root = Path(root)
        self.keep = keep

    def save(self, step, payload):
        folder = self.root / f"step_{step}"
        folder.mkdir(parents=True, exist_ok=True)
        tmp = folder / "state.pt.tmp"
        torch.save(payload, tmp)
        os.replace(tmp, folder / "state.pt")
        (self.root / "latest.json").write_text(json.dumps({"folder": folder.name, "step": step}))
        self.prune()

    def prune(self):
        folders = sorted(p for p in self.root.glob("step_*") if p.is_dir())
        for old in folders[: -self.keep]:
            shutil.rmtree(old)

    def newest(self):
        pointer = self.root / "latest.json"
        if not pointer.exists():
            return None
        path = self.root / json.loads(pointer.read_text())["folder"] / "state.pt"
        if not path.exists():
            return None
        return torch.load(path, map_location="cpu", weights_only=True)


def main():
    args = parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(11)
    store = CheckpointStore(ROOT, args.keep)
    if not args.resume and rank == 0:
        shutil.rmtree(ROOT, ignore_errors=True)
    dist.barrier()

    model = DDP(nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 1)))
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    first = 0
    if args.resume:
        state = store.newest()
        if state is not None:
            model.module.load_state_dict(state["model"])
            opt.load_state_dict(state["opt"])
            first = state["step"]
        if rank == 0:
            print(f"starting at step {first}", flush=True)
    dist.barrier()

    data = build_dataset()
    sampler = DistributedSampler(data, num_replicas=world, rank=rank, shuffle=True, seed=5)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    per_epoch = len(loader)
    last = first + args.steps
    step = first
    while step < last:
        sampler.set_epoch(step // per_epoch)
        skip = step % per_epoch
        for i, (x, y) in enumerate(loader):
            if i < skip:
                continue
            loss = F.mse_loss(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            if step % args.save_every == 0:
                if rank == 0:
                    store.save(step, {"model": model.module.state_dict(), "opt": opt.state_dict(), "step": step})
                dist.barrier()
            if rank == 0 and step % 4 == 0:
                print(f"step {step} loss {loss.item():.4f}", flush=True)
            if step == last:
                break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
