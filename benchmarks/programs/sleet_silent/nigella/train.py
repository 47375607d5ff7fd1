import argparse
import copy

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from networks import Critic, Generator, rings


class GanTrainer:
    def __init__(self, hp):
        self.hp, self.rank = hp, dist.get_rank()
        torch.manual_seed(hp.seed)
        self.gen, self.critic = DDP(Generator()), DDP(Critic())
        self.opt_g = torch.optim.Adam(self.gen.parameters(), lr=hp.lr, betas=(0.5, 0.99))
        self.opt_d = torch.optim.Adam(self.critic.parameters(), lr=hp.lr * 2, betas=(0.5, 0.99))
        self.noise = torch.Generator().manual_seed(hp.seed * 31 + self.rank)
        # smoothed copy for the sample sheets, the main process draws them
        self.smooth = copy.deepcopy(self.gen.module).requires_grad_(False) if self.rank == 0 else None

    def latents(self):
        return torch.randn(self.hp.batch, self.gen.module.z, generator=self.noise)

    def critic_step(self, real):
        with torch.no_grad():
            fake = self.gen.module(self.latents())
        both = self.critic(torch.cat([real, fake]))
        s_real, s_fake = both.chunk(2)
        loss = F.softplus(-s_real).mean() + F.softplus(s_fake).mean()
        x = real.clone().requires_grad_(True)
        if self.step % self.hp.r1_every == 0:
            g, = torch.autograd.grad(self.critic.module(x).sum(), x)
            self.r1 = g.pow(2).sum((1, 2, 3)).mean().item()
        self.opt_d.zero_grad(set_to_none=True)
        loss.backward()
        self.opt_d.step()
        return loss.item()

    def generator_step(self):
        self.critic.requires_grad_(False)
        loss = F.softplus(-self.critic.module(self.gen(self.latents()))).mean()
        self.opt_g.zero_grad(set_to_none=True)
        loss.backward()
        self.opt_g.step()
        self.critic.requires_grad_(True)
        return loss.item()

    @torch.no_grad()
    def track(self):
        if self.smooth is None:
            return
        for s, p in zip(self.smooth.parameters(), self.gen.module.parameters()):
            s.mul_(self.hp.ema).add_(p, alpha=1 - self.hp.ema)

    def run(self):
        self.r1 = 0.0
        for self.step in range(self.hp.steps):
            for _ in range(self.hp.critic_steps):
                d = self.critic_step(rings(self.hp.batch, self.noise))
            g = self.generator_step()
            self.track()
            if self.rank == 0 and self.step % 15 == 0:
                print(f"step {self.step} D {d:.3f} G {g:.3f} |grad|^2 {self.r1:.3f}", flush=True)
        if self.rank == 0:
            fixed = torch.randn(16, self.smooth.z, generator=torch.Generator().manual_seed(0))
            torch.save({"ema": self.smooth.state_dict(), "sheet": self.smooth(fixed)}, "samples.pt")


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--critic-steps", type=int, default=2)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--lr", type=float, default=4e-4)
    ap.add_argument("--ema", type=float, default=0.98)
    ap.add_argument("--r1-every", type=int, default=5)
    ap.add_argument("--seed", type=int, default=9)
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    GanTrainer(ap.parse_args()).run()
    dist.destroy_process_group()
