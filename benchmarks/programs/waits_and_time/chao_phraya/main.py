import argparse
import logging
import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn

from saver import BackgroundSaver
from volumes import VolumeSet

log = logging.getLogger("chao_phraya")


class Segmenter(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.down = nn.Sequential(nn.Conv3d(1, ch, 3, padding=1), nn.ReLU(), nn.Conv3d(ch, 2 * ch, 3, stride=2, padding=1), nn.ReLU())
        self.up = nn.ConvTranspose3d(2 * ch, ch, 2, stride=2)
        self.head = nn.Conv3d(ch, 1, 1)

    def forward(self, x):
        return self.head(torch.relu(self.up(self.down(x))))


def dice_loss(logits, mask):
    p = logits.sigmoid()
    inter = (p * mask).sum((1, 2, 3, 4))
    return 1 - ((2 * inter + 1) / (p.sum((1, 2, 3, 4)) + mask.sum((1, 2, 3, 4)) + 1)).mean()


class Ema:
    def __init__(self, model, decay):
        self.shadow = {k: v.detach().clone() for k, v in model.state_dict().items()}
        self.decay = decay

    def update(self, model):
        for k, v in model.state_dict().items():
            self.shadow[k].lerp_(v, 1 - self.decay)


def train(args, folder):
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    model = Segmenter(args.channels)
    ema = Ema(model, 0.9)
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, nesterov=True)
    data = VolumeSet(args.volumes, args.side, args.seed)
    saver = BackgroundSaver(folder, rank, world)
    step = 0
    for epoch in range(args.epochs):
        for idx in data.shard(rank, world, args.batch, epoch):
            image, mask = data.take(idx)
            logits = model(image)
            loss = dice_loss(logits, mask) + nn.functional.binary_cross_entropy_with_logits(logits, mask)
            opt.zero_grad()
            loss.backward()
            flat = torch.cat([p.grad.flatten() for p in model.parameters()])
            dist.all_reduce(flat)
            for p, g in zip(model.parameters(), flat.div_(world).split([p.numel() for p in model.parameters()])):
                p.grad.copy_(g.view_as(p))
            opt.step()
            ema.update(model)
            step += 1
            if rank == 0 and step % args.log_every == 0:
                log.info("epoch %d step %d loss %.4f", epoch, step, loss.item())
            if step % args.save_every == 0:
                saver.submit(step, {"model": model.state_dict(), "ema": ema.shadow, "opt": opt.state_dict()})
    saver.drain()
    return model, saver


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--volumes", type=int, default=80)
    ap.add_argument("--side", type=int, default=12)
    ap.add_argument("--channels", type=int, default=8)
    ap.add_argument("--batch", type=int, default=4)
    ap.add_argument("--epochs", type=int, default=6)
    ap.add_argument("--lr", type=float, default=0.1)
    ap.add_argument("--log-every", type=int, default=15)
    ap.add_argument("--save-every", type=int, default=20)
    ap.add_argument("--seed", type=int, default=71)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s [{dist.get_rank()}] [%(threadName)s] %(message)s")
    box = [tempfile.mkdtemp(prefix="volumes_") if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(box, src=0)
    model, saver = train(args, box[0])
    dist.barrier()
    if dist.get_rank() == 0:
        log.info("files %s", sorted(os.listdir(box[0])))
    log.info("sum %.8f", sum(float(p.detach().double().sum()) for p in model.parameters()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
