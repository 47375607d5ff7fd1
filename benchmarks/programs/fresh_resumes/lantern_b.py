import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def make_model():
    return nn.Sequential(
        nn.Linear(200, 768), nn.GELU(), nn.Linear(768, 768), nn.GELU(), nn.Linear(768, 16)
    )


def make_loader(seed, batch):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(5120, 200, generator=g)
    y = (x[:, :16] + 0.3 * torch.randn(5120, 16, generator=g)).argmax(1)
    data = TensorDataset(x, y)
    sampler = DistributedSampler(data, shuffle=True, seed=seed, drop_last=True)
    return sampler, DataLoader(data, batch_size=batch, sampler=sampler, drop_last=True)


@torch.no_grad()
def probe_loss(model, batches):
    model.eval()
    total = torch.stack([F.cross_entropy(model(x), y) for x, y in batches]).mean()
    model.train()
    dist.all_reduce(total)
    return total / dist.get_world_size()


def pretrain(args):
    sampler, loader = make_loader(31, args.batch)
    model = DDP(make_model())
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in loader:
            opt.zero_grad(set_to_none=True)
            F.cross_entropy(model(x), y).backward()
            opt.step()
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), args.weights)
    dist.barrier()


def finetune(args):
    sampler, loader = make_loader(32, args.batch)
    net = make_model()
    net.load_state_dict(torch.load(args.weights, map_location="cpu", weights_only=True))
    model = DDP(net)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-4)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        held = []
        for i, (x, y) in enumerate(loader):
            if i < args.probe:
                held.append((x, y))
                continue
            opt.zero_grad(set_to_none=True)
            F.cross_entropy(model(x), y).backward()
            opt.step()
        score = probe_loss(model, held)
        if dist.get_rank() == 0:
            print("epoch", epoch, "unseen loss", round(score.item(), 4), flush=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("stage", choices=["pretrain", "finetune"])
    p.add_argument("--weights", default=os.path.join(".", "lantern_weights.pt"))
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--batch", type=int, default=128)
    p.add_argument("--probe", type=int, default=4)
    args = p.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    pretrain(args) if args.stage == "pretrain" else finetune(args)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
