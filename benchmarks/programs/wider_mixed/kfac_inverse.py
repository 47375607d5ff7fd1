"""K-FAC with the factor inversions dealt out over the ranks; every owner broadcasts its preconditioned inverse."""
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class KFAC:
    def __init__(self, model, damping=0.03, decay=0.9, inv_every=5):
        self.layers = [m for m in model.modules() if isinstance(m, nn.Linear)]
        self.damping, self.decay, self.inv_every = damping, decay, inv_every
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.A, self.G, self.Ainv, self.Ginv = {}, {}, {}, {}
        self.owner = self._assign()
        self.step_no = 0
        for layer in self.layers:
            layer.register_forward_pre_hook(self._save_input)
            layer.register_full_backward_hook(self._save_grad)

    def _assign(self):
        load, owner = [0] * self.world, {}
        cost = lambda l: l.in_features ** 3 + l.out_features ** 3
        for layer in sorted(self.layers, key=cost, reverse=True):
            r = load.index(min(load))
            owner[layer] = r
            load[r] += cost(layer)
        return owner

    def _ema(self, store, key, value):
        store[key] = value if key not in store else self.decay * store[key] + (1 - self.decay) * value

    def _save_input(self, layer, args):
        if torch.is_grad_enabled():
            a = args[0].detach()
            a = torch.cat([a, torch.ones(len(a), 1)], 1)
            self._ema(self.A, layer, a.t() @ a / len(a))

    def _save_grad(self, layer, gin, gout):
        g = gout[0].detach() * len(gout[0])
        self._ema(self.G, layer, g.t() @ g / len(g))

    def _sync_factors(self):
        for layer in self.layers:
            for store in (self.A, self.G):
                dist.all_reduce(store[layer])
                store[layer] /= self.world

    def _invert(self, m):
        eye = torch.eye(m.size(0)) * self.damping ** 0.5
        return torch.linalg.inv(m + eye)

    def _update_inverses(self):
        work = []
        for layer in self.layers:
            if self.owner[layer] == self.rank:
                self.Ainv[layer], self.Ginv[layer] = self._invert(self.A[layer]), self._invert(self.G[layer])
            else:
                self.Ainv[layer], self.Ginv[layer] = torch.empty_like(self.A[layer]), torch.empty_like(self.G[layer])
        for layer in self.layers:
            work.append(dist.broadcast(self.Ainv[layer], src=self.owner[layer], async_op=True))
            work.append(dist.broadcast(self.Ginv[layer], src=self.owner[layer], async_op=True))
        for w in work:
            w.wait()

    @torch.no_grad()
    def precondition(self):
        if self.step_no % self.inv_every == 0:
            self._sync_factors()
            self._update_inverses()
        self.step_no += 1
        for layer in self.layers:
            g = torch.cat([layer.weight.grad, layer.bias.grad.unsqueeze(1)], 1)
            g = self.Ginv[layer] @ g @ self.Ainv[layer]
            layer.weight.grad.copy_(g[:, :-1])
            layer.bias.grad.copy_(g[:, -1])


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(9)
    net = nn.Sequential(nn.Linear(20, 96), nn.Tanh(), nn.Linear(96, 64), nn.Tanh(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 4))
    kfac = KFAC(net)
    ddp = DDP(net)
    opt = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    gen = torch.Generator().manual_seed(300 + rank)
    for step in range(60):
        x = torch.randn(48, 20, generator=gen)
        y = x[:, :12].view(-1, 4, 3).sum(2).argmax(1)
        loss = nn.functional.cross_entropy(ddp(x), y)
        opt.zero_grad()
        loss.backward()
        kfac.precondition()
        opt.step()
        if rank == 0 and step % 15 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
