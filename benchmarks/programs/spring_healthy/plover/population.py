import torch
import torch.distributed as dist


class Population:
    """One member a rank. Every `interval` steps the weakest members take over the strongest."""

    def __init__(self, model, optimizer, seed, fraction=0.25):
        self.model, self.optimizer = model, optimizer
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.n_swap = max(1, int(self.world * fraction))
        self.shared = torch.Generator().manual_seed(seed)   # same draws on every rank
        self.history = []

    def _flatten(self):
        parts = []
        for p in self.model.parameters():
            buf = self.optimizer.state[p].get("momentum_buffer")
            parts += [p.detach().reshape(-1), (torch.zeros_like(p) if buf is None else buf).reshape(-1)]
        g = self.optimizer.param_groups[0]
        return torch.cat(parts + [torch.tensor([g["lr"], g["weight_decay"]])])

    def _restore(self, flat):
        at = 0
        for p in self.model.parameters():
            n = p.numel()
            p.data.copy_(flat[at:at + n].view_as(p))
            self.optimizer.state[p]["momentum_buffer"] = flat[at + n:at + 2 * n].view_as(p).clone()
            at += 2 * n
        return flat[at].item(), flat[at + 1].item()

    def evolve(self, score):
        scores = torch.zeros(self.world)
        scores[self.rank] = score
        dist.all_reduce(scores)
        order = scores.argsort(descending=True, stable=True).tolist()
        winners, losers = order[:self.n_swap], order[-self.n_swap:]
        factors = torch.where(torch.rand(self.n_swap, 2, generator=self.shared) < 0.5, 0.7, 1.4)
        for k, (src, dst) in enumerate(zip(winners, reversed(losers))):
            if self.rank == src:
                dist.send(self._flatten(), dst=dst)
            elif self.rank == dst:
                flat = self._flatten()
                dist.recv(flat, src=src)
                lr, wd = self._restore(flat)
                group = self.optimizer.param_groups[0]
                group["lr"], group["weight_decay"] = lr * factors[k, 0].item(), wd * factors[k, 1].item()
        self.history.append((winners, losers))
        return scores
