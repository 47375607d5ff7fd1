"""GRPO on a toy sorting task. The completions of one prompt are spread over the processes.

    torchrun --nproc_per_node 2 train.py --group-size 8
"""
import argparse
import copy
import logging
import os
import random
import tempfile

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from policy import Policy, completion_logps

logger = logging.getLogger("grpo")
DIGITS, SEP = 10, 10


def set_seed(seed):
    random.seed(seed)
    torch.manual_seed(seed)


class PromptLoader:
    """Same prompts on every process: they share the groups."""

    def __init__(self, batch, length, seed):
        self.gen = torch.Generator().manual_seed(seed)
        self.batch, self.length = batch, length

    def next(self):
        digits = torch.randint(0, DIGITS, (self.batch, self.length), generator=self.gen)
        sep = torch.full((self.batch, 1), SEP)
        return torch.cat([digits, sep], 1), digits.sort(1).values


def reward_fn(completions, answers):
    exact = (completions == answers).float().mean(1)
    valid = (completions < DIGITS).float().mean(1)
    return exact + 0.2 * valid


class GRPOTrainer:
    def __init__(self, args):
        self.args = args
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        set_seed(args.seed)
        policy = Policy()
        self.ref = copy.deepcopy(policy).requires_grad_(False).eval()
        self.model = DDP(policy)
        self.optimizer = torch.optim.AdamW(policy.parameters(), lr=args.lr)
        self.prompts = PromptLoader(args.prompts, args.length, args.seed)
        assert args.group_size % self.world == 0
        self.per_rank = args.group_size // self.world

    def rollout(self):
        prompts, answers = self.prompts.next()
        prompts = prompts.repeat_interleave(self.per_rank, 0)
        answers = answers.repeat_interleave(self.per_rank, 0)
        plen = prompts.size(1)
        ids = self.model.module.generate(prompts, self.args.length)
        rewards = reward_fn(ids[:, plen:], answers)

        # one group consists of the completions of all processes
        gathered = [torch.empty_like(rewards) for _ in range(self.world)]
        dist.all_gather(gathered, rewards)
        group = torch.cat([g.view(-1, self.per_rank) for g in gathered], dim=1)
        mean, std = group.mean(1, keepdim=True), group.std(1, keepdim=True)
        adv = ((rewards.view(-1, self.per_rank) - mean) / (std + 1e-4)).flatten()
        return ids, plen, adv, group

    def step(self):
        ids, plen, adv, group = self.rollout()
        with torch.no_grad():
            old = completion_logps(self.model.module, ids, plen)
            ref = completion_logps(self.ref, ids, plen)
        for _ in range(self.args.inner):
            logps = completion_logps(self.model, ids, plen)
            ratio = (logps - old).exp()
            clipped = ratio.clamp(1 - self.args.clip, 1 + self.args.clip)
            pg = -torch.min(ratio * adv[:, None], clipped * adv[:, None])
            kl = (ref - logps).exp() - (ref - logps) - 1
            loss = (pg + self.args.beta * kl).mean()
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
        return group.mean().item(), group.std(1).mean().item(), kl.mean().item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--iterations", type=int, default=80)
    p.add_argument("--prompts", type=int, default=16, help="distinct prompts per iteration")
    p.add_argument("--group-size", type=int, default=8)
    p.add_argument("--length", type=int, default=6)
    p.add_argument("--inner", type=int, default=2)
    p.add_argument("--clip", type=float, default=0.2)
    p.add_argument("--beta", type=float, default=0.02)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--seed", type=int, default=42)
    p.add_argument("--out", default=None)
    args = p.parse_args()

    dist.init_process_group("gloo")
    logging.basicConfig(level=logging.INFO if dist.get_rank() == 0 else logging.WARNING, format="%(message)s")
    trainer = GRPOTrainer(args)
    for it in range(args.iterations):
        reward, spread, kl = trainer.step()
        if it % 10 == 0:
            logger.info("iter %3d reward %.3f reward_std %.3f kl %.4f", it, reward, spread, kl)
    if trainer.rank == 0:
        torch.save(trainer.model.module.state_dict(), os.path.join(args.out or tempfile.mkdtemp(), "policy.pt"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
