import argparse
import json
import shutil
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

ROOT = Path("orchard_run")


def write_json(path, obj):
    tmp = path.with_suffix(".tmp")
    tmp.write_text(json.dumps(obj))
    tmp.replace(path)


def save(step, epoch, model, opt):
    if dist.get_rank() == 0:
        folder = ROOT / f"step_{step}"
        folder.mkdir(parents=True, exist_ok=True)
        torch.save({"model": model.module.state_dict(), "opt": opt.state_dict(), "epoch": epoch, "step": step},
                   folder / "state.pt")
        write_json(ROOT / "latest.json", {"file": "state.pt", "step": step})
        folders = sorted(ROOT.glob("step_*"), key=lambda f: int(f.name.split("_")[1]))
        for old in folders[:-2]:
            shutil.rmtree(old)
    dist.barrier()


def restore(model, opt):
    info = json.loads((ROOT / "latest.json").read_text())
    path = ROOT / f"step_{info['step']}" / info["file"]
    state = torch.load(path, map_location="cpu", weights_only=True)
    model.module.load_state_dict(state["model"])
    opt.load_state_dict(state["opt"])
    return state["epoch"] + 1, state["step"]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--resume", action="store_true")
    args = p.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(2)
    data = TensorDataset(torch.randn(3072, 256, generator=g), torch.randn(3072, 32, generator=g))
    sampler = DistributedSampler(data, shuffle=True, drop_last=True)
    loader = DataLoader(data, batch_size=128, sampler=sampler, drop_last=True)
    model = DDP(nn.Sequential(nn.Linear(256, 768), nn.Tanh(), nn.Linear(768, 768), nn.Tanh(), nn.Linear(768, 32)))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    start, step = restore(model, opt) if args.resume else (0, 0)
    for epoch in range(start, args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            opt.zero_grad(set_to_none=True)
            F.mse_loss(model(x), y).backward()
            opt.step()
            step += 1
        save(step, epoch, model, opt)
        if dist.get_rank() == 0:
            print(epoch, step, sorted(f.name for f in ROOT.iterdir()), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
