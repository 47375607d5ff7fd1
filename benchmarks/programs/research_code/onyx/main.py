"""Two-stage recipe: BYOL-like pre-training of an encoder, then fine-tuning with few labels."""
import argparse
import logging
import os
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from byol import BYOL, Classifier, make_encoder
from signals import SignalSet

LOG = logging.getLogger("recipe")

CFG = SimpleNamespace(
    seed=21, dim=40,
    pre=SimpleNamespace(epochs=2, batch=40, lr=2e-3, wd=1e-4, tau=0.98, path="stage1/encoder.pt"),
    fine=SimpleNamespace(epochs=4, batch=16, lr_head=5e-3, lr_body=5e-4, path="stage2/model.pt", layer_decay=True),
)


def setup():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.CRITICAL, format="[%(name)s] %(message)s")
    torch.manual_seed(CFG.seed + 100 * rank)
    return rank, dist.get_world_size()


def mean_over_ranks(value, count):
    t = torch.tensor([value, count], dtype=torch.float64)
    dist.all_reduce(t)
    return (t[0] / t[1]).item()


def pretrain(cfg, rank):
    ds = SignalSet(480, seed=1, views=2, salt=rank)
    sampler = DistributedSampler(ds, seed=CFG.seed, drop_last=True)
    loader = DataLoader(ds, batch_size=cfg.batch, sampler=sampler, drop_last=True)
    net = BYOL(CFG.dim)
    model = DDP(net)
    net.reset_target()
    opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=cfg.lr, weight_decay=cfg.wd)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, cfg.epochs * len(loader))
    for epoch in range(cfg.epochs):
        sampler.set_epoch(epoch)
        ds.set_epoch(epoch)
        s = 0.0
        for (a, b), _ in loader:
            loss = model(a, b)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            sched.step()
            net.update_target(cfg.tau)
            s += loss.item()
        LOG.info("pretrain epoch %d loss %.4f", epoch, mean_over_ranks(s, len(loader)))
    if rank == 0:
        os.makedirs(os.path.dirname(cfg.path), exist_ok=True)
        torch.save({"encoder": net.online.state_dict(), "epoch": cfg.epochs}, cfg.path)
    dist.barrier()


def load_encoder(model, path, rank):
    """Initialise the encoder from stage one; heads keep their own initialisation."""
    if rank != 0:
        return
    state = torch.load(path, map_location="cpu")
    missing, unexpected = model.module.encoder.load_state_dict(state["encoder"], strict=False)
    LOG.info("loaded %s (stage-1 epoch %d), missing %d unexpected %d", path, state["epoch"], len(missing), len(unexpected))


def groups(model, cfg):
    body = list(model.module.encoder.parameters())
    head = list(model.module.head.parameters())
    return [{"params": body, "lr": cfg.lr_body if cfg.layer_decay else cfg.lr_head}, {"params": head, "lr": cfg.lr_head}]


@torch.no_grad()
def evaluate(model, ds, rank, world):
    model.eval()
    idx = torch.arange(rank, len(ds), world)
    x = torch.stack([ds.raw(i) for i in idx.tolist()])
    hit = (model.module(x).argmax(1) == ds.y[idx]).sum().item()
    model.train()
    return mean_over_ranks(hit, len(idx))


def finetune(cfg, rank, world):
    train, test = SignalSet(192, seed=2, views=1, salt=rank), SignalSet(240, seed=3, views=1)
    sampler = DistributedSampler(train, seed=CFG.seed)
    loader = DataLoader(train, batch_size=cfg.batch, sampler=sampler)
    model = DDP(Classifier(make_encoder(CFG.dim), CFG.dim, SignalSet.classes))
    load_encoder(model, CFG.pre.path, rank)
    opt = torch.optim.AdamW(groups(model, cfg), weight_decay=0.01)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, [g["lr"] for g in opt.param_groups], total_steps=cfg.epochs * len(loader))
    best = 0.0
    for epoch in range(cfg.epochs):
        sampler.set_epoch(epoch)
        train.set_epoch(epoch)
        s, n = 0.0, 0
        for (x,), y in loader:
            loss = F.cross_entropy(model(x), y, label_smoothing=0.05)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            opt.step()
            sched.step()
            s, n = s + loss.item() * len(y), n + len(y)
        acc = evaluate(model, test, rank, world)
        LOG.info("finetune epoch %d loss %.4f acc %.3f", epoch, mean_over_ranks(s, n), acc)
        if acc > best:
            best = acc
            if rank == 0:
                os.makedirs(os.path.dirname(cfg.path), exist_ok=True)
                torch.save({"model": model.module.state_dict(), "acc": acc}, cfg.path)
    dist.barrier()
    return best


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--skip-pretrain", action="store_true")
    args = ap.parse_args()
    rank, world = setup()
    if not args.skip_pretrain:
        pretrain(CFG.pre, rank)
    best = finetune(CFG.fine, rank, world)
    LOG.info("best acc %.3f", best)
    dist.destroy_process_group()
