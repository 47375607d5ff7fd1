"""Full-batch L-BFGS with a strong-Wolfe line search on row-sharded data, regularisation path over L2 strengths."""
import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import make_classification

log = logging.getLogger("wren")


class ShardedSoftmaxRegression:
    """Multinomial logistic regression over random Fourier features; rows live on one rank each."""

    def __init__(self, x, y, classes, n_total, features, seed):
        g = torch.Generator().manual_seed(seed)
        proj = torch.randn(x.shape[1], features, generator=g, dtype=torch.float64) * 0.35
        shift = torch.rand(features, generator=g, dtype=torch.float64) * 6.283
        self.phi = torch.cos(x @ proj + shift) * (2 / features) ** 0.5
        self.y, self.n_total, self.classes = y, n_total, classes
        self.weight = torch.nn.Parameter(torch.zeros(features, classes, dtype=torch.float64))
        self.evals = 0

    def objective(self, l2):
        """Global objective and gradient: per-rank sums, one reduction for both."""
        nll = F.cross_entropy(self.phi @ self.weight, self.y, reduction="sum") / self.n_total
        (g,) = torch.autograd.grad(nll, self.weight)
        packed = torch.cat([g.flatten(), nll.detach().reshape(1)])
        dist.all_reduce(packed)
        self.weight.grad = packed[:-1].view_as(self.weight) + l2 * self.weight.detach()
        self.evals += 1
        return packed[-1] + 0.5 * l2 * self.weight.detach().square().sum()

    def fit(self, l2, iterations, tol):
        opt = torch.optim.LBFGS([self.weight], lr=1.0, max_iter=iterations, history_size=12,
                                tolerance_grad=tol, tolerance_change=1e-12, line_search_fn="strong_wolfe")

        def closure():
            opt.zero_grad(set_to_none=True)
            return self.objective(l2)

        opt.step(closure)
        value = self.objective(l2)
        return value.item(), self.weight.grad.abs().max().item()

    @torch.no_grad()
    def correct(self):
        return ((self.phi @ self.weight).argmax(1) == self.y).sum()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rows", type=int, default=12_000)
    ap.add_argument("--features", type=int, default=160)
    ap.add_argument("--iterations", type=int, default=40)
    ap.add_argument("--l2", type=float, nargs="+", default=[1e-2, 1e-3, 1e-4, 1e-5])
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(message)s")
    x, y = make_classification(args.rows, 20, n_informative=12, n_classes=5, n_clusters_per_class=2, random_state=7)
    x = torch.from_numpy(x)
    x = (x - x.mean(0)) / x.std(0)
    rows = torch.arange(args.rows).tensor_split(world)[rank]
    model = ShardedSoftmaxRegression(x[rows], torch.from_numpy(y)[rows].long(), 5, args.rows, args.features, seed=3)

    for l2 in args.l2:
        before = model.evals
        value, gmax = model.fit(l2, args.iterations, tol=1e-7)
        hit = model.correct()
        dist.all_reduce(hit)
        log.info("l2 %.0e objective %.6f |g|max %.2e evaluations %d train accuracy %.4f",
                 l2, value, gmax, model.evals - before, hit.item() / args.rows)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
