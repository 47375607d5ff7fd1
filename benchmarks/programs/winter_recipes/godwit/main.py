import argparse
import copy
import logging
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from policy import PrefixLM
from preferences import Preferences, collate


class DPOTrainer:
    def __init__(self, policy, beta, lr):
        self.ref = copy.deepcopy(policy).eval().requires_grad_(False)
        self.policy = DDP(policy)
        self.beta = beta
        self.optimizer = torch.optim.RMSprop(self.policy.parameters(), lr=lr)

    def margins(self, batch):
        with torch.no_grad():
            ref = self.ref(*batch)
        ratio = self.policy(*batch) - ref
        chosen, rejected = ratio.chunk(2)
        return self.beta * chosen, self.beta * rejected

    def step(self, batch):
        chosen, rejected = self.margins(batch)
        loss = -F.logsigmoid(chosen - rejected).mean()
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.policy.parameters(), 10.0)
        self.optimizer.step()
        return torch.stack([loss.detach(), (chosen > rejected).float().mean(), (chosen - rejected).detach().mean()])


def main():
    p = argparse.ArgumentParser("direct preference optimisation")
    p.add_argument("--pairs", type=int, default=896)
    p.add_argument("--batch-size", type=int, default=16)
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--beta", type=float, default=0.1)
    p.add_argument("--lr", type=float, default=1e-4)
    p.add_argument("--out", default=os.path.join(tempfile.gettempdir(), f"dpo-{os.environ.get('MASTER_PORT', 0)}"))
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(message)s")
    torch.manual_seed(0)
    data = Preferences(args.pairs)
    sampler = DistributedSampler(data, drop_last=True)
    loader = DataLoader(data, args.batch_size, sampler=sampler, collate_fn=collate, drop_last=True)
    trainer = DPOTrainer(PrefixLM(), args.beta, args.lr)
    step = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for batch in loader:
            stats = trainer.step(batch)
            if step % 8 == 0:
                dist.all_reduce(stats)
                loss, acc, margin = (stats / world).tolist()
                logging.info("epoch %d step %d loss %.4f accuracy %.3f margin %.3f", epoch, step, loss, acc, margin)
            step += 1
    if rank == 0:
        os.makedirs(args.out, exist_ok=True)
        torch.save(trainer.policy.module.state_dict(), os.path.join(args.out, "policy.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
