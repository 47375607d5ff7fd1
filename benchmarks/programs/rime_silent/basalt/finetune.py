"""Behaviour cloning with a transformer encoder and an L1 action head."""
import argparse
import logging
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from policy import ActionHead, ObsEncoder

log = logging.getLogger("finetune")


def make_demos(n, seed):
    g = torch.Generator().manual_seed(seed)
    image = torch.randn(n, 16, 48, generator=g)
    prop = torch.randn(n, 8, generator=g)
    wg = torch.Generator().manual_seed(7)
    w_img, w_prop = torch.randn(48, 28, generator=wg) / 7, torch.randn(8, 28, generator=wg) / 3
    act = torch.tanh(image.mean(1) @ w_img + prop @ w_prop).view(n, 4, 7)
    return TensorDataset(image, prop, act)


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--batch-size", type=int, default=32)
    p.add_argument("--demos", type=int, default=1536)
    p.add_argument("--lr", type=float, default=5e-4)
    p.add_argument("--seed", type=int, default=3)
    p.add_argument("--run-dir", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "run"))
    return p.parse_args()


@torch.no_grad()
def validate(encoder, head, loader):
    encoder.eval()
    head.eval()
    err = torch.zeros(2)
    for image, prop, act in loader:
        pred = head.module.predict_action(encoder.module(image, prop))
        err += torch.tensor([(pred - act).abs().sum().item(), act.numel()])
    dist.all_reduce(err)
    encoder.train()
    head.train()
    return (err[0] / err[1]).item()


def main():
    args = parse()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(message)s")
    torch.manual_seed(args.seed)

    train = make_demos(args.demos, 0)
    val = make_demos(256, 1)
    sampler = DistributedSampler(train, shuffle=True, seed=args.seed, drop_last=True)
    loader = DataLoader(train, args.batch_size, sampler=sampler, drop_last=True)
    val_loader = DataLoader(val, 64, sampler=DistributedSampler(val, shuffle=False))

    encoder = DDP(ObsEncoder())
    action_head = DDP(ActionHead())
    params = list(encoder.parameters()) + list(action_head.parameters())
    optimizer = torch.optim.AdamW(params, lr=args.lr, weight_decay=1e-2)
    total = args.epochs * len(loader)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total)

    step = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for image, prop, act in loader:
            hidden = encoder(image, prop)
            pred = action_head.module.predict_action(hidden)
            loss = F.l1_loss(pred, act)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(params, 1.0)
            optimizer.step()
            scheduler.step()
            step += 1
            if step % 10 == 0:
                log.info("step %d/%d l1 %.4f lr %.2e", step, total, loss.item(), scheduler.get_last_lr()[0])
        log.info("epoch %d val l1 %.4f", epoch, validate(encoder, action_head, val_loader))
        if rank == 0:
            os.makedirs(args.run_dir, exist_ok=True)
            torch.save({"encoder": encoder.module.state_dict(), "action_head": action_head.module.state_dict(),
                        "step": step}, os.path.join(args.run_dir, "policy.pt"))
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
