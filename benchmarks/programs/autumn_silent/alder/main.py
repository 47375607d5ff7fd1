"""Group-relative policy optimisation on a toy echo task."""
import argparse
import logging
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from policy import GRUPolicy
from rewards import diversity_penalty, echo_reward

log = logging.getLogger("grpo")


class GRPOTrainer:
    def __init__(self, args):
        self.args = args
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        torch.manual_seed(args.seed)
        self.model = DDP(GRUPolicy(args.vocab_size, args.hidden))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=args.lr)
        self.prompt_rng = torch.Generator().manual_seed(args.seed + 17 * self.rank)
        self.sample_rng = torch.Generator().manual_seed(args.seed + 1000 + self.rank)

    def sample_prompts(self):
        a = self.args
        return torch.randint(0, a.vocab_size, (a.prompts_per_rank, a.prompt_len), generator=self.prompt_rng)

    def gather(self, tensor):
        parts = [torch.empty_like(tensor) for _ in range(self.world_size)]
        dist.all_gather(parts, tensor.contiguous())
        return torch.cat(parts)

    def generate_and_score(self):
        a = self.args
        prompts = self.sample_prompts()
        repeated = prompts.repeat_interleave(a.num_generations, dim=0)
        sequences = self.model.module.generate(
            repeated, a.completion_len, a.temperature, generator=self.sample_rng
        )
        completions = sequences[:, a.prompt_len:]
        rewards = echo_reward(repeated, completions) + diversity_penalty(completions)

        rewards = self.gather(rewards)
        grouped = rewards.view(-1, a.num_generations)
        mean = grouped.mean(dim=1).repeat_interleave(a.num_generations)
        advantages = (rewards - mean) / (rewards.std() + 1e-4)

        start = self.rank * len(completions)
        advantages = advantages[start:start + len(completions)]

        with torch.no_grad():
            old_logp = self.model.module(sequences, a.prompt_len)
        return sequences, old_logp, advantages, rewards.mean().item()

    def compute_loss(self, sequences, old_logp, advantages):
        a = self.args
        logp = self.model(sequences, a.prompt_len)
        ratio = torch.exp(logp - old_logp)
        adv = advantages.unsqueeze(1)
        clipped = torch.clamp(ratio, 1 - a.clip_eps, 1 + a.clip_eps)
        return -torch.min(ratio * adv, clipped * adv).mean()

    def train(self):
        a = self.args
        t0 = time.time()
        for step in range(a.steps):
            sequences, old_logp, advantages, reward = self.generate_and_score()
            for _ in range(a.inner_epochs):
                loss = self.compute_loss(sequences, old_logp, advantages)
                self.optimizer.zero_grad(set_to_none=True)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()
            if step % a.log_every == 0 and self.rank == 0:
                log.info("step %4d reward %.4f loss %.4f (%.1fs)", step, reward, loss.item(), time.time() - t0)
        return reward


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=120)
    p.add_argument("--prompts_per_rank", type=int, default=6)
    p.add_argument("--num_generations", type=int, default=8)
    p.add_argument("--prompt_len", type=int, default=3)
    p.add_argument("--completion_len", type=int, default=9)
    p.add_argument("--vocab_size", type=int, default=12)
    p.add_argument("--hidden", type=int, default=96)
    p.add_argument("--temperature", type=float, default=1.0)
    p.add_argument("--inner_epochs", type=int, default=2)
    p.add_argument("--clip_eps", type=float, default=0.2)
    p.add_argument("--lr", type=float, default=3e-3)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--log_every", type=int, default=20)
    return p.parse_args()


def main():
    args = parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    dist.init_process_group("gloo")
    trainer = GRPOTrainer(args)
    final = trainer.train()
    if dist.get_rank() == 0:
        log.info("final mean reward %.4f", final)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
