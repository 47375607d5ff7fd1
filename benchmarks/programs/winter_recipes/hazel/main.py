import argparse
import logging

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from data import PairedCaptions
from losses import ClipLoss
from model import TwoTower

log = logging.getLogger("clip")


def parse_args():
    p = argparse.ArgumentParser("two tower contrastive pretraining")
    p.add_argument("--pairs", type=int, default=1792)
    p.add_argument("--batch-size", type=int, default=64, help="per process")
    p.add_argument("--epochs", type=int, default=5)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--wd", type=float, default=0.05)
    p.add_argument("--local-loss", action=argparse.BooleanOptionalAction, default=True)
    p.add_argument("--gather-with-grad", action=argparse.BooleanOptionalAction, default=True)
    p.add_argument("--seed", type=int, default=0)
    return p.parse_args()


@torch.no_grad()
def zero_shot_retrieval(model, dataset, k=5):
    model.eval()
    img, txt, _ = model(dataset.images, dataset.captions)
    top = (img @ txt.t()).topk(k, dim=1).indices
    hit = (top == torch.arange(len(dataset))[:, None]).any(1).float().mean()
    model.train()
    return hit.item()


def main():
    args = parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(message)s")
    torch.manual_seed(args.seed)

    train = PairedCaptions(args.pairs)
    val = PairedCaptions(512, seed=1234)
    sampler = DistributedSampler(train, shuffle=True, seed=args.seed, drop_last=True)
    loader = DataLoader(train, args.batch_size, sampler=sampler, drop_last=True)

    model = DDP(TwoTower())
    criterion = ClipLoss(args.local_loss, args.gather_with_grad)
    decay = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": args.wd}, {"params": rest, "weight_decay": 0.0}], lr=args.lr
    )
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.lr, total_steps=args.epochs * len(loader))

    step = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for images, captions in loader:
            loss = criterion(*model(images, captions))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            if step % 10 == 0:
                log.info("epoch %d step %d loss %.4f", epoch, step, loss.item())
            step += 1
        if rank == 0:
            log.info("epoch %d retrieval R@5 %.3f", epoch, zero_shot_retrieval(model.module, val))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
