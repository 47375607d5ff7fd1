import torch
import torch.distributed as dist


def off_diagonal(m):
    n = m.size(0)
    return m.flatten()[:-1].view(n - 1, n + 1)[:, 1:].flatten()


class CrossCorrelationLoss(torch.nn.Module):
    """Redundancy reduction: the cross-correlation of two views should be the identity."""

    def __init__(self, lambda_param=5e-3, gather_distributed=False):
        super().__init__()
        self.lambda_param = lambda_param
        self.gather_distributed = gather_distributed

    @staticmethod
    def _standardise(z):
        return (z - z.mean(0)) / (z.std(0) + 1e-5)

    def forward(self, z_a, z_b):
        n = z_a.size(0)
        c = self._standardise(z_a).T @ self._standardise(z_b) / n
        if self.gather_distributed and dist.is_initialized():
            world = dist.get_world_size()
            if world > 1:
                c = c / world
                dist.all_reduce(c)
        invariance = (torch.diagonal(c) - 1).square().sum()
        redundancy = off_diagonal(c).square().sum()
        return invariance + self.lambda_param * redundancy
