"""PPO in one file per algorithm, with a torchrun-friendly gradient average."""
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributions import Categorical


def layer_init(layer, std=2 ** 0.5, bias=0.0):
    nn.init.orthogonal_(layer.weight, std)
    nn.init.constant_(layer.bias, bias)
    return layer


class Agent(nn.Module):
    def __init__(self, obs, acts):
        super().__init__()
        self.critic = nn.Sequential(layer_init(nn.Linear(obs, 48)), nn.Tanh(), layer_init(nn.Linear(48, 1), std=1.0))
        self.actor = nn.Sequential(layer_init(nn.Linear(obs, 48)), nn.Tanh(), layer_init(nn.Linear(48, acts), std=0.01))

    def get_value(self, x):
        return self.critic(x).squeeze(-1)

    def get_action_and_value(self, x, action=None):
        probs = Categorical(logits=self.actor(x))
        action = probs.sample() if action is None else action
        return action, probs.log_prob(action), probs.entropy(), self.get_value(x)


@torch.no_grad()
def average_gradients(agent, world_size):
    grads = [p.grad.view(-1) for p in agent.parameters() if p.grad is not None]
    flat = torch.cat(grads)
    dist.all_reduce(flat, op=dist.ReduceOp.SUM)
    offset = 0
    for p in agent.parameters():
        if p.grad is not None:
            p.grad.copy_(flat[offset:offset + p.numel()].view_as(p.grad) / world_size)
            offset += p.numel()


def gae(rewards, values, dones, last, gamma=0.97, lam=0.9):
    adv, run = torch.zeros_like(rewards), 0.0
    for t in reversed(range(len(rewards))):
        nxt = last if t == len(rewards) - 1 else values[t + 1]
        delta = rewards[t] + gamma * nxt * (1 - dones[t]) - values[t]
        run = delta + gamma * lam * (1 - dones[t]) * run
        adv[t] = run
    return adv, adv + values
