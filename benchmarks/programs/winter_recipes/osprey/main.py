import argparse
import logging
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from dataset import BucketBatchSampler, Utterances, collate
from model import ConformerLite


def noam(step, dim=96, warmup=60, factor=0.6):
    step += 1
    return factor * dim ** -0.5 * min(step ** -0.5, step * warmup ** -1.5)


def main():
    p = argparse.ArgumentParser("ctc training")
    p.add_argument("--utterances", type=int, default=520)
    p.add_argument("--batch-size", type=int, default=10)
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--log-every", type=int, default=8)
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(message)s")
    torch.manual_seed(20)

    data = Utterances(args.utterances)
    sampler = BucketBatchSampler(data.durations, args.batch_size, world, rank)
    loader = DataLoader(data, batch_sampler=sampler, collate_fn=collate)
    model = DistributedDataParallel(ConformerLite())
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0, betas=(0.9, 0.98))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, noam)
    torch.manual_seed(20 + rank)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        tick = time.time()
        frames = 0
        for step, (x, x_len, y, y_len) in enumerate(loader):
            logp, out_len = model(x, x_len)
            loss = F.ctc_loss(logp.transpose(0, 1), y, out_len, y_len, zero_infinity=True)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            scheduler.step()
            frames += int(x_len.sum())
            if step % args.log_every == 0:
                logging.info("epoch %d step %d/%d ctc %.3f", epoch, step, len(loader), loss.item())
        total = torch.tensor(float(frames))
        dist.all_reduce(total)
        logging.info("epoch %d: %.0f frames/s", epoch, total.item() / (time.time() - tick))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
