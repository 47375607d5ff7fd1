"""Adversarial signal restoration with Accelerate: two networks, two optimizers."""
import argparse
import logging

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader

from parts import Judge, Restorer, Signals

log = logging.getLogger("restore")


def arguments():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--batch-size", type=int, default=16)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--judge-lr", type=float, default=1e-3)
    p.add_argument("--adv-weight", type=float, default=0.02)
    p.add_argument("--adv-start", type=int, default=1, help="epoch")
    p.add_argument("--seed", type=int, default=13)
    return p.parse_args()


def judge_loss(judge, poor, clean, restored):
    both = judge(torch.cat([poor, poor]), torch.cat([clean, restored.detach()]))
    on_clean, on_restored = both.chunk(2)
    return F.relu(1 - on_clean).mean() + F.relu(1 + on_restored).mean()


@torch.no_grad()
def evaluate(accelerator, net, loader):
    net.eval()
    errors = []
    for poor, clean in loader:
        err = (net(poor) - clean).pow(2).mean((1, 2))
        errors.append(accelerator.gather_for_metrics(err))
    net.train()
    errors = torch.cat(errors)
    return errors.mean().sqrt().item(), len(errors)


class Alternating:
    def __init__(self, accelerator, a, steps_per_epoch):
        self.accelerator, self.a = accelerator, a
        net, judge = Restorer(), Judge()
        opt = torch.optim.AdamW(net.parameters(), lr=a.lr, betas=(0.5, 0.99))
        opt_j = torch.optim.AdamW(judge.parameters(), lr=a.judge_lr, betas=(0.5, 0.99))
        total = a.epochs * steps_per_epoch
        self.sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: max(0.05, 1 - s / total))
        self.net, self.judge, self.opt, self.opt_j = accelerator.prepare(net, judge, opt, opt_j)

    def step(self, poor, clean, adversarial):
        restored = self.net(poor)
        l_judge = torch.zeros(())
        if adversarial:
            l_judge = judge_loss(self.judge, poor, clean, restored)
            self.opt_j.zero_grad()
            self.accelerator.backward(l_judge)
            self.opt_j.step()
        loss = F.l1_loss(restored, clean)
        if adversarial:
            core = self.accelerator.unwrap_model(self.judge)
            core.requires_grad_(False)
            loss = loss - self.a.adv_weight * core(poor, restored).mean()
        self.opt.zero_grad()
        self.accelerator.backward(loss)
        self.accelerator.clip_grad_norm_(self.net.parameters(), 1.0)
        self.opt.step()
        self.sched.step()
        if adversarial:
            core.requires_grad_(True)
        return loss.detach(), l_judge.detach()


def main():
    a = arguments()
    accelerator = Accelerator(cpu=True)
    logging.basicConfig(format="%(message)s",
                        level=logging.INFO if accelerator.is_main_process else logging.ERROR)
    set_seed(a.seed)
    train = DataLoader(Signals(400, seed=1), a.batch_size, shuffle=True, drop_last=True)
    valid = DataLoader(Signals(100, seed=2), 32)
    train, valid = accelerator.prepare(train, valid)
    job = Alternating(accelerator, a, len(train))
    log.info("%d steps per epoch on %d processes", len(train), accelerator.num_processes)

    for epoch in range(a.epochs):
        sums = torch.zeros(2)
        for poor, clean in train:
            sums += torch.stack(job.step(poor, clean, epoch >= a.adv_start))
        sums = accelerator.reduce(sums, reduction="mean") / len(train)
        rmse, n = evaluate(accelerator, job.net, valid)
        log.info("epoch %d loss %.4f judge %.4f rmse %.4f on %d signals lr %.2e", epoch, sums[0],
                 sums[1], rmse, n, job.sched.get_last_lr()[0])
    accelerator.wait_for_everyone()
    accelerator.end_training()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
