"""Two training ranks and a rank that does nothing but judge checkpoints and vote on stopping."""
import argparse
import logging
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

log = logging.getLogger("duo")
GO, STOP = 0, 1


def waveforms(n, seed):
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(40).float()
    y = torch.randint(0, 5, (n,), generator=g)
    period = 5.0 + 2.2 * y.float()
    phase = torch.rand(n, generator=g) * 6.28
    kind = torch.sin(2 * torch.pi * t / period[:, None] + phase[:, None])
    return TensorDataset((kind + 0.5 * torch.randn(n, 40, generator=g))[:, None], y)


class Conv(nn.Module):
    def __init__(self, ch=24):
        super().__init__()
        self.c1, self.c2 = nn.Conv1d(1, ch, 7, padding=3), nn.Conv1d(ch, ch, 5, padding=2, stride=2)
        self.n1, self.n2 = nn.GroupNorm(4, ch), nn.GroupNorm(4, ch)
        self.out = nn.Linear(ch, 5)

    def forward(self, x):
        h = F.relu(self.n1(self.c1(x)))
        return self.out(F.relu(self.n2(self.c2(h))).mean(-1))


class Mailbox:
    """Messages from the lead trainer to the judge and back."""

    def __init__(self, lead, judge):
        self.lead, self.judge = lead, judge

    def submit(self, path):
        dist.send_object_list([{"path": path}], dst=self.judge)

    def finish(self):
        dist.send_object_list([{"path": None}], dst=self.judge)

    def take(self):
        box = [None]
        dist.recv_object_list(box, src=self.lead)
        return box[0]["path"]

    def answer(self, verdict, accuracy):
        dist.send(torch.tensor([float(verdict), accuracy]), dst=self.lead)

    def verdict(self):
        t = torch.zeros(2)
        dist.recv(t, src=self.judge)
        return int(t[0]), t[1].item()


class Judge:
    def __init__(self, box, patience):
        self.box, self.patience = box, patience
        self.net = Conv().eval().requires_grad_(False)
        self.data = DataLoader(waveforms(600, 2), batch_size=100)
        self.best, self.bad, self.judged = 0.0, 0, 0

    def accuracy(self):
        right = total = 0
        for x, y in self.data:
            right += (self.net(x).argmax(1) == y).sum().item()
            total += len(y)
        return right / total

    def serve(self):
        while (path := self.box.take()) is not None:
            self.net.load_state_dict(torch.load(path, map_location="cpu")["model"])
            acc = self.accuracy()
            self.judged += 1
            self.bad = 0 if acc > self.best + 0.002 else self.bad + 1
            self.best = max(self.best, acc)
            self.box.answer(STOP if self.bad >= self.patience else GO, acc)
        log.info("judged %d checkpoints, best %.3f", self.judged, self.best)


def train(args, group, rank, box, folder):
    torch.manual_seed(args.seed)
    model = DDP(Conv(), process_group=group)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    data = waveforms(1600, 1)
    size = dist.get_world_size(group)
    sampler = DistributedSampler(data, num_replicas=size, rank=dist.get_rank(group), seed=args.seed)
    loader = DataLoader(data, batch_size=args.batch, sampler=sampler)
    waiting = False
    for epoch in range(args.max_epochs):
        sampler.set_epoch(epoch)
        tally = torch.zeros(2)
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            tally += torch.tensor([loss.item() * len(y), float(len(y))])
        dist.all_reduce(tally, group=group)
        decision = torch.tensor([GO])
        if rank == 0:
            if waiting:
                verdict, acc = box.verdict()
                log.info("epoch %d judged %.3f", epoch - 1, acc)
                decision[0] = verdict
                waiting = False
            if verdict_open(decision):
                path = os.path.join(folder, f"epoch{epoch}.pt")
                torch.save({"model": model.module.state_dict(), "epoch": epoch}, path)
                box.submit(path)
                waiting = True
            log.info("epoch %d loss %.4f", epoch, (tally[0] / tally[1]).item())
        dist.broadcast(decision, src=0, group=group)
        if not verdict_open(decision):
            break
    if rank == 0:
        if waiting:
            _, acc = box.verdict()
            log.info("last judged %.3f", acc)
        box.finish()


def verdict_open(decision):
    return int(decision[0]) == GO


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--max-epochs", type=int, default=8)
    ap.add_argument("--patience", type=int, default=3)
    ap.add_argument("--batch", type=int, default=40)
    ap.add_argument("--lr", type=float, default=1.5e-3)
    ap.add_argument("--seed", type=int, default=91)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format=f"[{'judge' if rank == world - 1 else 'train'} {rank}] %(message)s")
    trainers = dist.new_group(list(range(world - 1)))
    place = [tempfile.mkdtemp(prefix="wormwood_") if rank == 0 else None]
    dist.broadcast_object_list(place, src=0)
    box = Mailbox(lead=0, judge=world - 1)
    if rank == world - 1:
        Judge(box, args.patience).serve()
    else:
        train(args, trainers, rank, box, place[0])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
