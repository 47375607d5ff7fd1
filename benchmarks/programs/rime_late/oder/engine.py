"""Weakly annotated detection: encoder and decoder are wrapped apart, so that the
encoder can be exchanged for a larger one without touching the decoder's state."""
import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from nets import Decoder, Encoder
from pictures import Blobs

log = logging.getLogger("blobs")


def mean_over_ranks(value):
    value = value.detach().clone()
    dist.all_reduce(value)
    return value.item() / dist.get_world_size()


class Engine:
    def __init__(self, args):
        self.args = args
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(args.seed)
        self.encoder = DistributedDataParallel(Encoder(args.width), process_group=dist.new_group())
        self.decoder = DistributedDataParallel(Decoder(args.width, 4), process_group=dist.new_group())
        parameters = list(self.encoder.parameters()) + list(self.decoder.parameters())
        self.optimizer = torch.optim.AdamW(parameters, lr=args.lr)
        data = Blobs(args.count, args.annotated, seed=args.seed)
        self.sampler = DistributedSampler(data, seed=args.seed, drop_last=True)
        self.loader = DataLoader(data, args.batch, sampler=self.sampler, drop_last=True)
        test = Blobs(800, 1.0, seed=args.seed + 1)
        part = torch.utils.data.Subset(test, range(self.rank, len(test), self.world))
        self.test_loader = DataLoader(part, 100)

    def losses(self, image, kind, box, has_box):
        scores, predicted = self.decoder(self.encoder(image))
        loss = F.cross_entropy(scores, kind)
        error = F.l1_loss(predicted, box, reduction="none").mean(1) * has_box
        return loss + 5 * error.sum() / has_box.sum().clamp(min=1)

    def epoch(self, number):
        self.sampler.set_epoch(number)
        average = None
        for image, kind, box, has_box in self.loader:
            loss = self.losses(image, kind, box, has_box)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            now = mean_over_ranks(loss)
            average = now if average is None else 0.95 * average + 0.05 * now
        return average

    @torch.no_grad()
    def test(self):
        sums = torch.zeros(3)
        for image, kind, box, _ in self.test_loader:
            scores, predicted = self.decoder.module(self.encoder.module(image))
            sums += torch.stack([(scores.argmax(1) == kind).sum(), (predicted - box).abs().mean(1).sum(), torch.tensor(len(kind))])
        dist.all_reduce(sums)
        return (sums[0] / sums[2]).item(), (sums[1] / sums[2]).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--count", type=int, default=3200)
    parser.add_argument("--annotated", type=float, default=0.2)
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=13)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    logging.basicConfig(level=logging.INFO if dist.get_rank() == 0 else logging.ERROR, format="%(message)s")
    engine = Engine(args)
    for number in range(args.epochs):
        loss = engine.epoch(number)
        accuracy, distance = engine.test()
        log.info("epoch %d loss %.3f accuracy %.3f box distance %.3f", number, loss, accuracy, distance)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
