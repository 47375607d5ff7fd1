"""Two-stage pipeline training of a small ViT on synthetic blobs.

    torchrun --nproc_per_node 2 train.py --microbatches 4
"""
import argparse
import logging
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from stages import FirstStage, LastStage

logger = logging.getLogger("pp-vit")


def make_split(n, classes, seed):
    g = torch.Generator().manual_seed(seed)
    centers = torch.randn(classes, 3, 8, 8, generator=g)
    labels = torch.randint(0, classes, (n,), generator=g)
    images = F.interpolate(centers[labels], size=32, mode="bilinear", align_corners=False)
    return images + 1.2 * torch.randn(n, 3, 32, 32, generator=g), labels


class Trainer:
    def __init__(self, args):
        self.args = args
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        assert self.world == 2, "the model is cut into two stages"
        self.is_first, self.is_last = self.rank == 0, self.rank == self.world - 1
        torch.manual_seed(args.seed + self.rank)
        tokens = (32 // args.patch) ** 2
        if self.is_first:
            self.module = FirstStage(args.patch, args.width, args.heads, args.depth // 2, tokens)
        else:
            self.module = LastStage(args.width, args.heads, args.depth // 2, args.classes)
        stage = PipelineStage(self.module, self.rank, self.world, torch.device("cpu"))
        self.schedule = Schedule1F1B(stage, args.microbatches, loss_fn=F.cross_entropy)
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
        self.images, self.labels = make_split(args.samples, args.classes, args.seed)

    def clip_gradients(self):
        params = [p for p in self.module.parameters() if p.grad is not None]
        total_norm = torch.nn.utils.get_total_norm([p.grad for p in params])
        total_norm = total_norm ** 2
        dist.all_reduce(total_norm)
        total_norm = total_norm ** 0.5
        torch.nn.utils.clip_grads_with_norm_(params, self.args.max_norm, total_norm)
        return total_norm

    def train_step(self, index):
        self.optimizer.zero_grad(set_to_none=True)
        losses = []
        if self.is_first:
            self.schedule.step(self.images[index])
        else:
            self.schedule.step(target=self.labels[index], losses=losses)
        total_norm = self.clip_gradients()
        self.optimizer.step()
        # only the last stage knows the loss
        report = torch.stack(losses).mean().detach() if self.is_last else torch.zeros(())
        dist.broadcast(report, src=self.world - 1)
        return report.item(), total_norm.item()

    def fit(self):
        order = torch.Generator().manual_seed(self.args.seed)
        step, start = 0, time.time()
        for epoch in range(self.args.epochs):
            # the same permutation on both stages, images and labels have to match
            perm = torch.randperm(len(self.labels), generator=order)
            for lo in range(0, len(perm) - self.args.batch_size + 1, self.args.batch_size):
                loss, norm = self.train_step(perm[lo:lo + self.args.batch_size])
                if step % 10 == 0 and self.is_first:
                    logger.info("epoch %d step %d loss %.4f grad norm %.3f %.1fs", epoch, step, loss, norm,
                                time.time() - start)
                step += 1


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--samples", type=int, default=800)
    p.add_argument("--batch-size", type=int, default=32)
    p.add_argument("--microbatches", type=int, default=4)
    p.add_argument("--patch", type=int, default=4)
    p.add_argument("--width", type=int, default=64)
    p.add_argument("--heads", type=int, default=4)
    p.add_argument("--depth", type=int, default=6)
    p.add_argument("--classes", type=int, default=20)
    p.add_argument("--lr", type=float, default=0.05)
    p.add_argument("--max-norm", type=float, default=0.5)
    p.add_argument("--seed", type=int, default=3)
    p.add_argument("--out", default=None)
    args = p.parse_args()
    dist.init_process_group("gloo")
    logging.basicConfig(level=logging.INFO, format="[rank%d] %%(message)s" % dist.get_rank())
    trainer = Trainer(args)
    trainer.fit()
    torch.save(trainer.module.state_dict(), f"{args.out or tempfile.mkdtemp()}/stage{trainer.rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
