import argparse

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from diffusion import Denoiser, Diffusion
from trainer import Trainer


def shapes(n=2048):
    g = torch.Generator().manual_seed(4)
    axis = torch.linspace(-1, 1, 16)
    yy, xx = torch.meshgrid(axis, axis, indexing="ij")
    c = torch.rand(n, 2, 1, 1, generator=g) - 0.5
    r = 0.2 + 0.4 * torch.rand(n, 1, 1, generator=g)
    inside = ((xx - c[:, 0]) ** 2 + (yy - c[:, 1]) ** 2).sqrt() < r
    return TensorDataset(inside.float().unsqueeze(1) * 2 - 1)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=100)
    p.add_argument("--batch-size", type=int, default=64)
    p.add_argument("--preview-every", type=int, default=5)
    p.add_argument("--preview-size", type=int, default=32)
    p.add_argument("--sampling-steps", type=int, default=25)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--folder", default="/tmp/bream_samples")
    args = p.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(5)
    model = DDP(Diffusion(Denoiser()))
    torch.manual_seed(50 + dist.get_rank())
    data = shapes()
    loader = DataLoader(data, args.batch_size, sampler=DistributedSampler(data), drop_last=True)
    Trainer(model, loader, args.lr, args.steps, args.preview_every, args.preview_size,
            args.sampling_steps, args.folder).train()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
