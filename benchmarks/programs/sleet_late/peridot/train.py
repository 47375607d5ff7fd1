import argparse
import os

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from net import Masked, Tagged


def signals(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 3, (n,), generator=g)
    t = torch.linspace(0, 1, 64)
    x = torch.sin(6.28 * (2 + 3 * y).unsqueeze(1) * t + 6.28 * torch.rand(n, 1, generator=g))
    return TensorDataset(x + 0.3 * torch.randn(n, 64, generator=g), y)


def epochs(ds, args):
    sampler = DistributedSampler(ds, seed=args.seed)
    loader = DataLoader(ds, batch_size=args.batch_size, sampler=sampler, drop_last=True)
    for e in range(args.epochs):
        sampler.set_epoch(e)
        yield e, loader


def pretrain(args):
    net = DDP(Masked())
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.05)
    for e, loader in epochs(signals(640, 1), args):
        for x, _ in loader:
            loss = net(x)
            opt.zero_grad()
            loss.backward()
            opt.step()
        info(f"pretrain epoch {e} mse {loss.item():.4f}")
        if dist.get_rank() == 0:
            os.makedirs("checkpoints", exist_ok=True)
            torch.save({"model": net.module.state_dict(), "optimizer": opt.state_dict(), "epoch": e},
                       "checkpoints/pretrain.pt")


def finetune(args):
    model = Tagged()
    if args.weights:
        saved = torch.load(args.weights, map_location="cpu")["model"]
        body = {k.removeprefix("encoder."): v for k, v in saved.items() if k.startswith("encoder.")}
        model.encoder.load_state_dict(body)
        info(f"encoder weights taken from {args.weights}; classification head is new")
    net = DDP(model)
    opt = torch.optim.SGD([{"params": model.encoder.parameters(), "lr": 5e-3},
                           {"params": model.head.parameters(), "lr": 5e-2}], lr=1e-2, momentum=0.9)
    for e, loader in epochs(signals(256, 2), args):
        right = 0
        for x, y in loader:
            out = net(x)
            loss = cross_entropy(out, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            right += (out.argmax(1) == y).sum().item()
        info(f"finetune epoch {e} loss {loss.item():.4f} acc {right / (len(loader) * args.batch_size):.3f}")
    if dist.get_rank() == 0:
        torch.save({"model": model.state_dict()}, "checkpoints/tagger.pt")


def info(msg):
    if dist.get_rank() == 0:
        print(msg, flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("task", choices=["pretrain", "finetune"])
    ap.add_argument("--weights", default="")
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--batch-size", type=int, default=32)
    ap.add_argument("--seed", type=int, default=0)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(args.seed + dist.get_rank())
    {"pretrain": pretrain, "finetune": finetune}[args.task](args)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
