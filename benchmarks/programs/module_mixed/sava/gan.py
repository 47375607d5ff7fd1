from collections import deque

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from nets import Discriminator, Generator


class Balance:
    """Keeps the two players level: a discriminator that wins too clearly sits out."""

    def __init__(self, ceiling, window):
        self.ceiling, self.history = ceiling, deque(maxlen=window)

    def note(self, real_logit, fake_logit):
        hits = torch.cat([real_logit > 0, fake_logit < 0]).float().mean()
        self.history.append(hits.item())

    @property
    def accuracy(self):
        return sum(self.history) / len(self.history) if self.history else 0.5

    def discriminator_plays(self):
        return self.accuracy < self.ceiling


class GAN:
    def __init__(self, batch, ceiling=0.8, window=3):
        self.batch = batch
        self.g_group, self.d_group = dist.new_group(), dist.new_group()
        self.gen = DDP(Generator(), process_group=self.g_group)
        self.dis = DDP(Discriminator(), process_group=self.d_group)
        self.opt_g = torch.optim.Adam(self.gen.parameters(), lr=1e-3, betas=(0.5, 0.99))
        self.opt_d = torch.optim.Adam(self.dis.parameters(), lr=4e-3, betas=(0.5, 0.99))
        self.balance = Balance(ceiling, window)

    def _update_d(self, real, fake):
        r, f = self.dis(torch.cat([real, fake])).chunk(2)
        loss = F.softplus(-r).mean() + F.softplus(f).mean()
        self.opt_d.zero_grad()
        loss.backward()
        self.opt_d.step()

    def _update_g(self, data):
        logit = self.dis.module(self.gen(data.noise(self.batch)))
        loss = F.softplus(-logit).mean()
        self.opt_g.zero_grad()
        loss.backward()
        self.opt_g.step()
        return loss.item()

    def step(self, data):
        real = data.real(self.batch)
        with torch.no_grad():
            fake = self.gen.module(data.noise(self.batch))
            self.balance.note(self.dis.module(real), self.dis.module(fake))
        if self.balance.discriminator_plays():
            self._update_d(real, fake)
        return self._update_g(data)
