import torch
import torch.distributed as dist
import torch.nn.functional as F

from clicks import loaders
from towers import TwoTower


class Trainer:
    def __init__(self, cfg):
        self.cfg = cfg
        self.world = dist.get_world_size()
        self.model = TwoTower(cfg.users, cfg.items, cfg.dim)
        self.tables = torch.optim.SparseAdam(self.model.tables(), lr=cfg.lr_table)
        self.dense = torch.optim.Adam(self.model.dense(), lr=cfg.lr_dense)
        self.train, self.sampler, self.test = loaders(cfg)
        for p in self.model.parameters():
            dist.broadcast(p.data, 0)

    def reduce_gradients(self):
        for p in self.model.parameters():
            if p.grad is None:
                continue
            if p.grad.is_sparse:
                full = p.grad.to_dense()
                dist.all_reduce(full)
                p.grad = (full / self.world).to_sparse(1)
                continue
            dist.all_reduce(p.grad)
            p.grad /= self.world

    def epoch(self, n):
        self.sampler.set_epoch(n)
        total = torch.zeros(2)
        for rows, y in self.train:
            loss = F.binary_cross_entropy_with_logits(self.model(rows[:, 0], rows[:, 1]), y)
            self.tables.zero_grad()
            self.dense.zero_grad()
            loss.backward()
            self.reduce_gradients()
            self.tables.step()
            self.dense.step()
            total += torch.tensor([loss.item(), 1.0])
        dist.all_reduce(total)
        return (total[0] / total[1]).item()

    @torch.no_grad()
    def evaluate(self):
        hit, n = 0, 0
        for rows, y in self.test:
            hit += ((self.model(rows[:, 0], rows[:, 1]) > 0).float() == y).sum().item()
            n += len(y)
        return hit / n

    def export(self, path):
        if dist.get_rank() == 0:
            torch.save(self.model.state_dict(), path)
