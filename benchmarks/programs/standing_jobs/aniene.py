"""Denoising autoencoder; checkpoints are packed by an external program on the first rank."""
import argparse
import datetime
import json
import logging
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

log = logging.getLogger("dae")

# stands for the site's packer: reads names on its input, one a line, and writes one archive
PACKER = """
import sys, tarfile
out = tarfile.open(sys.argv[1], "w:gz")
count = 0
for line in sys.stdin:
    out.add(line.strip())
    count += 1
out.close()
print(count, "files packed")
"""


@dataclass
class Config:
    n: int = 1920
    width: int = 32
    code: int = 6
    batch: int = 32
    epochs: int = 4
    lr: float = 4e-3
    noise: float = 0.3
    pack_every: int = 2
    seed: int = 41


class Autoencoder(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(cfg.width, 48), nn.SiLU(), nn.Linear(48, cfg.code))
        self.dec = nn.Sequential(nn.Linear(cfg.code, 48), nn.SiLU(), nn.Linear(48, cfg.width))

    def forward(self, x):
        return self.dec(self.enc(x))


def make_data(cfg):
    g = torch.Generator().manual_seed(cfg.seed)
    z = torch.randn(cfg.n, cfg.code, generator=g)
    mix = torch.randn(cfg.code, cfg.width, generator=g) / cfg.code ** 0.5
    return TensorDataset(torch.tanh(z @ mix) + 0.02 * torch.randn(cfg.n, cfg.width, generator=g))


class Keeper:
    """Loose files per epoch, packed into one archive every few epochs."""

    def __init__(self, folder, cfg):
        self.folder, self.cfg = folder, cfg
        self.loose = []
        (folder / "config.json").write_text(json.dumps(asdict(cfg)))
        self.packer = folder / "packer.py"
        self.packer.write_text(PACKER)

    def keep(self, epoch, model, opt, loss):
        path = self.folder / f"epoch{epoch}.pt"
        torch.save({"model": model.state_dict(), "opt": opt.state_dict(), "loss": loss}, path)
        self.loose.append(path)
        if len(self.loose) >= self.cfg.pack_every:
            self.pack(epoch)

    def pack(self, epoch):
        target = self.folder / f"pack{epoch}.tar.gz"
        cmd = [sys.executable, str(self.packer), str(target)]
        proc = subprocess.Popen(cmd, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for path in self.loose:
            proc.stdin.write(f"{path}\n")
        proc.stdin.close()
        code = proc.wait()
        if code != 0:
            raise RuntimeError(f"packer failed with {code}")
        log.info("%s", proc.stdout.read().strip())
        for path in self.loose:
            path.unlink()
        self.loose.clear()


def train_epoch(cfg, model, loader, opt, gen):
    total, n = 0.0, 0
    for (x,) in loader:
        noisy = x + cfg.noise * torch.randn(x.shape, generator=gen)
        loss = nn.functional.mse_loss(model(noisy), x)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        total += loss.item() * len(x)
        n += len(x)
    sums = torch.tensor([total, n], dtype=torch.float64)
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--pack-every", type=int, default=2)
    args = ap.parse_args()
    dist.init_process_group("gloo", timeout=datetime.timedelta(hours=2))
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING,
                        format=f"r{rank} %(message)s")
    cfg = Config(epochs=args.epochs, pack_every=args.pack_every)
    torch.manual_seed(cfg.seed)
    data = make_data(cfg)
    sampler = DistributedSampler(data, seed=cfg.seed)
    loader = DataLoader(data, cfg.batch, sampler=sampler)
    model = DDP(Autoencoder(cfg))
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.8)
    gen = torch.Generator().manual_seed(cfg.seed + 1 + rank)
    keeper = Keeper(Path(tempfile.mkdtemp(prefix="dae_")), cfg) if rank == 0 else None

    for epoch in range(cfg.epochs):
        sampler.set_epoch(epoch)
        loss = train_epoch(cfg, model, loader, opt, gen)
        sched.step()
        log.info("epoch %d loss %.4f", epoch, loss)
        if keeper is not None:
            keeper.keep(epoch, model.module, opt, loss)
        dist.monitored_barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
