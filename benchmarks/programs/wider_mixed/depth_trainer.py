"""Self-supervised depth, trainer with per-epoch output lists as in the horovod/DDP trainers of that family."""
import argparse
from collections import defaultdict

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Frames(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        base = torch.randn(3, 8, 8, generator=g)
        img = nn.functional.interpolate(base[None], size=96, mode="bilinear", align_corners=False)[0]
        return {"rgb": img, "rgb_context": img.roll(1, -1), "idx": i}


class DepthNet(nn.Module):
    def __init__(self, c=10):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, c, 3, padding=1), nn.ELU(), nn.Conv2d(c, c, 3, padding=1), nn.ELU(),
                                 nn.Conv2d(c, 1, 3, padding=1), nn.Sigmoid())

    def forward(self, batch):
        depth = self.net(batch["rgb"])
        warped = torch.lerp(batch["rgb"], batch["rgb"].roll(1, -1), depth)
        photo = (warped - batch["rgb_context"]).abs().mean()
        smooth = (depth[..., 1:] - depth[..., :-1]).abs().mean()
        return {"loss": photo + 0.01 * smooth, "metrics": {"photo": photo.detach()},
                "inv_depths": depth, "warped": warped}


class Trainer:
    def __init__(self, args):
        self.args = args
        torch.manual_seed(0)
        self.model = DDP(DepthNet())
        self.opt = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        ds = Frames(args.frames)
        self.sampler = DistributedSampler(ds)
        self.loader = DataLoader(ds, batch_size=4, sampler=self.sampler)

    def train_epoch(self, epoch):
        self.sampler.set_epoch(epoch)
        outputs = []
        for batch in self.loader:
            self.opt.zero_grad()
            output = self.model(batch)
            output["loss"].backward()
            self.opt.step()
            outputs.append(output)
        return self.epoch_end(outputs)

    def epoch_end(self, outputs):
        sums = defaultdict(float)
        for out in outputs:
            sums["loss"] += out["loss"]
            for k, v in out["metrics"].items():
                sums[k] += v
        stacked = torch.stack([sums[k].detach() / len(outputs) for k in sorted(sums)])
        dist.all_reduce(stacked)
        return dict(zip(sorted(sums), (stacked / dist.get_world_size()).tolist()))

    def fit(self):
        for epoch in range(self.args.epochs):
            avg = self.train_epoch(epoch)
            if dist.get_rank() == 0:
                print(f"epoch {epoch} {avg}", flush=True)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=1)
    ap.add_argument("--frames", type=int, default=640)
    dist.init_process_group("gloo")
    Trainer(ap.parse_args()).fit()
    dist.destroy_process_group()
