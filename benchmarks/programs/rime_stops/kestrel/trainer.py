import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from control import Dashboard, RemoteControl


class KeypointFrames(Dataset):
    def __init__(self, n=4000, size=24, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.xy = torch.rand(n, 2, generator=g)
        axis = torch.linspace(0, 1, size)
        dx = (axis[None, :] - self.xy[:, :1]) ** 2
        dy = (axis[None, :] - self.xy[:, 1:]) ** 2
        self.img = torch.exp(-(dy[:, :, None] + dx[:, None, :]) / 0.01)
        self.img += 0.05 * torch.randn(self.img.shape, generator=g)

    def __len__(self):
        return len(self.xy)

    def __getitem__(self, i):
        return self.img[i].unsqueeze(0), self.xy[i]


def build_net():
    return nn.Sequential(
        nn.Conv2d(1, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(24, 48, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(48 * 36, 64), nn.ReLU(), nn.Linear(64, 2),
    )


class Trainer:
    def __init__(self, args):
        self.args = args
        self.rank = dist.get_rank()
        self.should_stop = False
        torch.manual_seed(args.seed)
        self.model = DDP(build_net())
        self.opt = torch.optim.Adam(self.model.parameters(), lr=args.lr)
        data = KeypointFrames()
        self.sampler = DistributedSampler(data, seed=args.seed, drop_last=True)
        self.loader = DataLoader(data, args.batch_size, sampler=self.sampler, drop_last=True)
        self.control = self.dashboard = None
        if self.rank == 0:
            mailbox = os.path.join(args.run_dir, "mailbox.json")
            os.makedirs(args.run_dir, exist_ok=True)
            if os.path.exists(mailbox):
                os.remove(mailbox)
            self.control = RemoteControl(mailbox).start()
            self.dashboard = Dashboard(mailbox, args.target)

    def on_batch_end(self, step, loss):
        if self.rank == 0:
            self.dashboard.report(step, loss)
            if self.control.stop_requested and not self.should_stop:
                print(f"step {step}: stop requested from the dashboard", flush=True)
                self.should_stop = True
        dist.barrier()

    def fit(self):
        step, start = 0, time.time()
        for epoch in range(self.args.epochs):
            self.sampler.set_epoch(epoch)
            for img, xy in self.loader:
                loss = F.mse_loss(self.model(img), xy)
                self.opt.zero_grad(set_to_none=True)
                loss.backward()
                self.opt.step()
                step += 1
                self.on_batch_end(step, loss.item())
                if self.should_stop:
                    break
            if self.rank == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.5f} "
                      f"({time.time() - start:.1f}s)", flush=True)
            if self.should_stop:
                break
        self.save()

    def save(self):
        if self.rank == 0:
            torch.save(self.model.module.state_dict(),
                       os.path.join(self.args.run_dir, "final.pt"))
            self.control.close()
        dist.barrier()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=6)
    p.add_argument("--batch-size", type=int, default=32)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--target", type=float, default=0.002)
    p.add_argument("--run-dir", default="run")
    p.add_argument("--seed", type=int, default=3)
    args = p.parse_args()
    dist.init_process_group("gloo")
    Trainer(args).fit()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
