import torch


class RolloutStorage:
    def __init__(self, horizon, envs, obs_dim, act_dim):
        self.obs = torch.zeros(horizon, envs, obs_dim)
        self.act = torch.zeros(horizon, envs, act_dim)
        self.rew = torch.zeros(horizon, envs)
        self.val = torch.zeros(horizon, envs)
        self.logp = torch.zeros(horizon, envs)
        self.mu = torch.zeros(horizon, envs, act_dim)
        self.sigma = torch.zeros(horizon, envs, act_dim)
        self.t = 0

    def add(self, **kw):
        for k, v in kw.items():
            getattr(self, k)[self.t] = v
        self.t += 1

    def clear(self):
        self.t = 0

    def returns(self, last_value, gamma=0.98, lam=0.95):
        adv = torch.zeros_like(self.rew)
        run, nxt = 0.0, last_value
        for t in reversed(range(self.rew.size(0))):
            delta = self.rew[t] + gamma * nxt - self.val[t]
            run = delta + gamma * lam * run
            adv[t], nxt = run, self.val[t]
        return adv + self.val, (adv - adv.mean()) / (adv.std() + 1e-8)

    def minibatches(self, ret, adv, n, epochs):
        flat = [t.flatten(0, 1) for t in (self.obs, self.act, self.logp, self.mu, self.sigma, ret, adv)]
        for _ in range(epochs):
            for idx in torch.randperm(flat[0].size(0)).chunk(n):
                yield [t[idx] for t in flat]
