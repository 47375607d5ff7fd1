import torch
import torch.distributed as dist
import torch.nn as nn


class ActorCritic(nn.Module):
    def __init__(self, obs_dim, act_dim, hidden=48):
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(obs_dim, hidden), nn.ELU(), nn.Linear(hidden, act_dim))
        self.critic = nn.Sequential(nn.Linear(obs_dim, hidden), nn.ELU(), nn.Linear(hidden, 1))
        self.log_std = nn.Parameter(torch.zeros(act_dim))

    def dist_of(self, obs):
        mu = self.actor(obs)
        return torch.distributions.Normal(mu, self.log_std.exp().expand_as(mu))

    def value(self, obs):
        return self.critic(obs).squeeze(-1)


class PPO:
    def __init__(self, net, lr=1e-3, schedule="adaptive", desired_kl=0.01, clip=0.2, epochs=2, minibatches=2):
        self.net, self.clip, self.epochs, self.n_mb = net, clip, epochs, minibatches
        self.schedule, self.desired_kl = schedule, desired_kl
        self.learning_rate = lr
        self.optimizer = torch.optim.Adam(net.parameters(), lr=lr)
        self.world = dist.get_world_size()

    def broadcast_parameters(self):
        for p in self.net.parameters():
            dist.broadcast(p.data, 0)

    def reduce_parameters(self):
        flat = torch.cat([p.grad.view(-1) for p in self.net.parameters()])
        dist.all_reduce(flat, op=dist.ReduceOp.SUM)
        flat /= self.world
        at = 0
        for p in self.net.parameters():
            p.grad.copy_(flat[at:at + p.numel()].view_as(p))
            at += p.numel()

    @torch.no_grad()
    def _adapt(self, mu, sigma, old_mu, old_sigma):
        kl = torch.sum(torch.log(sigma / old_sigma + 1e-5)
                       + (old_sigma.square() + (old_mu - mu).square()) / (2.0 * sigma.square()) - 0.5, dim=-1)
        kl_mean = kl.mean()
        dist.all_reduce(kl_mean, op=dist.ReduceOp.SUM)
        kl_mean /= self.world
        if kl_mean > self.desired_kl * 2.0:
            self.learning_rate = max(1e-5, self.learning_rate / 1.5)
        elif 0.0 < kl_mean < self.desired_kl / 2.0:
            self.learning_rate = min(1e-2, self.learning_rate * 1.5)
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate

    def update(self, storage, last_value):
        ret, adv = storage.returns(last_value)
        total = 0.0
        for obs, act, logp, mu, sigma, r, a in storage.minibatches(ret, adv, self.n_mb, self.epochs):
            d = self.net.dist_of(obs)
            new_logp = d.log_prob(act).sum(-1)
            if self.schedule == "adaptive":
                self._adapt(d.mean, d.stddev, mu, sigma)
            ratio = (new_logp - logp).exp()
            surrogate = -torch.min(ratio * a, ratio.clamp(1 - self.clip, 1 + self.clip) * a).mean()
            loss = surrogate + 0.5 * (self.net.value(obs) - r).square().mean() - 0.002 * d.entropy().sum(-1).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.reduce_parameters()
            nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
            self.optimizer.step()
            total += loss.item()
        storage.clear()
        return total / (self.n_mb * self.epochs)
