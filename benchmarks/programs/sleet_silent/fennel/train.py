import argparse
import json
import pathlib

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from vq import VQVAE


def make_images(n, seed, size=24):
    g = torch.Generator().manual_seed(seed)
    yy, xx = torch.meshgrid(torch.linspace(0, 1, size), torch.linspace(0, 1, size), indexing="ij")
    f = torch.randint(1, 5, (n, 3, 2), generator=g).float()
    ph = torch.rand(n, 3, 1, 1, generator=g) * 6.28
    img = torch.sin(6.28 * (f[..., 0, None, None] * xx + f[..., 1, None, None] * yy) + ph)
    return img + 0.05 * torch.randn(img.shape, generator=g)


@torch.no_grad()
def evaluate(model, images, codes):
    model.eval()
    rec, _, idx = model(images)
    used = torch.bincount(idx, minlength=codes).gt(0).float().mean()
    return {"mse": F.mse_loss(rec, images).item(), "usage": used.item()}


def main(argv=None):
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--bs", type=int, default=16)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--beta", type=float, default=0.25)
    ap.add_argument("--codes", type=int, default=48)
    ap.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/vq"))
    opt = ap.parse_args(argv)

    dist.init_process_group(backend="gloo")
    main_proc = dist.get_rank() == 0
    torch.set_num_threads(1)
    torch.manual_seed(11)
    train = TensorDataset(make_images(512, 0))
    sampler = DistributedSampler(train, seed=11)
    loader = DataLoader(train, opt.bs, sampler=sampler, drop_last=True)
    holdout = make_images(48, 1)

    net = VQVAE(n_codes=opt.codes)
    ddp = DistributedDataParallel(net, forward_sync_buffers=False)
    optim = torch.optim.Adam(ddp.parameters(), lr=opt.lr)
    history = []
    for ep in range(opt.epochs):
        sampler.set_epoch(ep)
        ddp.train()
        for (x,) in loader:
            rec, commit, _ = ddp(x)
            loss = F.mse_loss(rec, x) + opt.beta * commit
            optim.zero_grad()
            loss.backward()
            optim.step()
        if main_proc:
            stats = evaluate(net, holdout, opt.codes)
            history.append(stats)
            print(f"[{ep}] train {loss.item():.4f} holdout {stats['mse']:.4f} codes used {stats['usage']:.0%}", flush=True)
    if main_proc:
        opt.out.mkdir(parents=True, exist_ok=True)
        torch.save(net.state_dict(), opt.out / "vqvae.pt")
        (opt.out / "history.json").write_text(json.dumps(history))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
