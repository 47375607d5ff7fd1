import copy
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


@dataclass
class GRPOConfig:
    vocab: int = 24
    hidden: int = 24
    group_size: int = 8
    prompts: int = 4
    iterations: int = 14
    inner_epochs: int = 2
    lr: float = 3e-3
    clip: float = 0.2


class Policy(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.emb = nn.Embedding(cfg.vocab, cfg.hidden)
        self.body = nn.Sequential(nn.Linear(cfg.hidden, cfg.hidden), nn.Tanh())
        self.head = nn.Linear(cfg.hidden, cfg.vocab)

    def forward(self, tokens):
        return self.head(self.body(self.emb(tokens))).log_softmax(-1)


class RolloutEngine:
    def __init__(self, policy, seed):
        self.policy = copy.deepcopy(policy).eval().requires_grad_(False)
        self.gen = torch.Generator().manual_seed(seed)

    def load_weights(self, named_tensors):
        own = self.policy.state_dict()
        for name, value in named_tensors.items():
            own[name].copy_(value)

    @torch.no_grad()
    def generate(self, prompts, n):
        prompts = prompts.repeat_interleave(n)
        logp = self.policy(prompts)
        actions = torch.multinomial(logp.exp(), 1, generator=self.gen).squeeze(1)
        return prompts, actions, logp.gather(1, actions[:, None]).squeeze(1)


def reward_fn(prompts, actions, vocab):
    return 1.0 - ((actions - prompts * 5 - 3) % vocab).float() / vocab


class GRPOTrainer:
    def __init__(self, cfg):
        self.cfg = cfg
        self.rank = dist.get_rank()
        torch.manual_seed(11)
        net = Policy(cfg)
        self.engine = RolloutEngine(net, seed=100 + self.rank)
        self.policy = DDP(net)
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=cfg.lr)
        self.weights = {k: v.detach().clone() for k, v in net.state_dict().items()}
        self.prompt_gen = torch.Generator().manual_seed(500 + self.rank)

    def sync_weights(self):
        self.engine.load_weights(self.policy.module.state_dict())

    def train_iteration(self):
        cfg = self.cfg
        prompts = torch.randint(0, cfg.vocab, (cfg.prompts,), generator=self.prompt_gen)
        prompts, actions, old_logp = self.engine.generate(prompts, cfg.group_size)
        rewards = reward_fn(prompts, actions, cfg.vocab).view(-1, cfg.group_size)
        adv = ((rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)).flatten()
        for _ in range(cfg.inner_epochs):
            logp = self.policy(prompts).gather(1, actions[:, None]).squeeze(1)
            ratio = (logp - old_logp).exp()
            loss = -torch.min(ratio * adv, ratio.clamp(1 - cfg.clip, 1 + cfg.clip) * adv).mean()
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()
        return rewards.mean()

    def fit(self):
        for it in range(self.cfg.iterations):
            self.sync_weights()
            reward = self.train_iteration()
            if it % 5 == 4:
                dist.all_reduce(reward, op=dist.ReduceOp.AVG if dist.get_backend() == "nccl" else dist.ReduceOp.SUM)
                if self.rank == 0:
                    print(f"iter {it} reward {reward.item() / dist.get_world_size():.3f}", flush=True)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    GRPOTrainer(GRPOConfig()).fit()
    dist.destroy_process_group()
