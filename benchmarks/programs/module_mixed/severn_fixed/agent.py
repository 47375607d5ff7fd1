import torch
import torch.distributed as dist
import torch.nn as nn

from normalization import EmpiricalNormalization


class QNet(nn.Module):
    def __init__(self, obs, act):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(obs, 64), nn.ReLU(), nn.Linear(64, act))

    def forward(self, x):
        return self.net(x)


class Agent:
    def __init__(self, obs, act, gamma=0.97, lr=2e-3):
        self.gamma, self.world = gamma, dist.get_world_size()
        self.q = QNet(obs, act)
        self.target = QNet(obs, act)
        self.norm = EmpiricalNormalization(obs, until=100_000)
        self._broadcast()
        self.target.load_state_dict(self.q.state_dict())
        self.opt = torch.optim.Adam(self.q.parameters(), lr=lr)

    def _broadcast(self):
        for t in (*self.q.parameters(), *self.norm.buffers()):
            dist.broadcast(t.data, 0)

    @torch.no_grad()
    def act(self, obs, eps, gen):
        greedy = self.q(self.norm(obs)).argmax(1)
        rand = torch.randint(0, 3, greedy.shape, generator=gen)
        return torch.where(torch.rand(greedy.shape, generator=gen) < eps, rand, greedy)

    def learn(self, batch):
        obs, act, rew, nxt = batch
        self.norm.update(obs)
        with torch.no_grad():
            goal = rew + self.gamma * self.target(self.norm(nxt)).max(1).values
        q = self.q(self.norm(obs)).gather(1, act[:, None]).squeeze(1)
        loss = nn.functional.smooth_l1_loss(q, goal)
        self.opt.zero_grad()
        loss.backward()
        for p in self.q.parameters():
            dist.all_reduce(p.grad)
            p.grad /= self.world
        self.opt.step()
        return loss.item()

    @torch.no_grad()
    def soft_update(self, tau=0.05):
        for t, p in zip(self.target.parameters(), self.q.parameters()):
            t.lerp_(p, tau)
