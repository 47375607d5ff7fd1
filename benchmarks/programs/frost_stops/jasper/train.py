import argparse
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from preview import Preview


def discs(n, size=16, seed=0):
    g = torch.Generator().manual_seed(seed)
    c = torch.rand(n, 2, 1, 1, generator=g) * size
    r = 2 + 3 * torch.rand(n, 1, 1, generator=g)
    yy, xx = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    mask = ((yy - c[:, 0]) ** 2 + (xx - c[:, 1]) ** 2 < r ** 2).float().unsqueeze(1)
    return mask + 0.4 * torch.randn(n, 1, size, size, generator=g), mask


def block(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU())


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--preview-every", type=int, default=12)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(12)
    images, masks = discs(640)
    data = TensorDataset(images, masks)
    sampler = DistributedSampler(data, seed=12)
    loader = DataLoader(data, args.batch, sampler=sampler, drop_last=True)
    model = DDP(nn.Sequential(block(1, 8), block(8, 8), nn.Conv2d(8, 1, 1)))
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    preview = Preview(tempfile.mkdtemp(prefix="discs_"), discs(4, seed=99)[0], args.preview_every) if rank == 0 else None

    step = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.binary_cross_entropy_with_logits(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            if preview is not None and preview.due(step):
                preview.render(model, step)
        if rank == 0:
            print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
