"""Denoiser trained in two stages (see stages.yaml): coarse noise first, then fine noise at a low rate."""
import argparse
import pathlib
from types import SimpleNamespace

import torch
import torch.distributed as dist
import yaml
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

HERE = pathlib.Path(__file__).parent


class Blobs(Dataset):
    def __init__(self, n=480):
        g = torch.Generator().manual_seed(12)
        c = torch.rand(n, 2, generator=g) * 16
        yy, xx = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
        d2 = (yy - c[:, :1, None]) ** 2 + (xx - c[:, 1:, None]) ** 2
        self.img = torch.exp(-d2 / 12).unsqueeze(1)

    def __len__(self):
        return len(self.img)

    def __getitem__(self, i):
        return self.img[i]


class Denoiser(nn.Module):
    def __init__(self, ch=20):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, ch, 3, padding=1), nn.LeakyReLU(0.1),
                                 nn.Conv2d(ch, ch, 3, padding=1), nn.LeakyReLU(0.1),
                                 nn.Conv2d(ch, 1, 3, padding=1))

    def forward(self, x):
        return x - self.net(x)


def run(stage, seed):
    rank = dist.get_rank()
    torch.manual_seed(seed + 1000 * rank)
    model = Denoiser()
    if stage.init:
        model.load_state_dict(torch.load(stage.init, weights_only=True)["model"])
    ddp = nn.parallel.DistributedDataParallel(model)
    opt = optim.Adam(ddp.parameters(), lr=stage.lr)
    data = Blobs()
    sampler = DistributedSampler(data, seed=seed)
    loader = DataLoader(data, 24, sampler=sampler, drop_last=True)
    for ep in range(stage.epochs):
        sampler.set_epoch(ep)
        for clean in loader:
            noisy = clean + stage.noise * torch.randn_like(clean)
            loss = (ddp(noisy) - clean).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        if rank == 0:
            print(f"  epoch {ep}: mse {loss.item():.5f}", flush=True)
    if rank == 0:
        out = pathlib.Path(stage.save)
        out.parent.mkdir(parents=True, exist_ok=True)
        torch.save({"model": model.state_dict(), "optimizer": opt.state_dict(), "epoch": stage.epochs}, out)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--stage", default="coarse")
    ap.add_argument("--seed", type=int, default=6)
    a = ap.parse_args()
    stage = SimpleNamespace(**yaml.safe_load((HERE / "stages.yaml").read_text())[a.stage])
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        print(f"stage {a.stage}: lr {stage.lr} noise {stage.noise} init {stage.init}", flush=True)
    run(stage, a.seed)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
