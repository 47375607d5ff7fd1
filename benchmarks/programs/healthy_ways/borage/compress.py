import torch
import torch.distributed as dist


class TopKErrorFeedback:
    """Sends only the largest entries of each gradient; what is left is remembered for the next step."""

    def __init__(self, params, ratio):
        self.params, self.ratio = list(params), ratio
        self.world = dist.get_world_size()
        self.memory = [torch.zeros(p.numel()) for p in self.params]
        self.sent = self.dense = 0

    @torch.no_grad()
    def __call__(self):
        picks, values, sizes = [], [], []
        for p, m in zip(self.params, self.memory):
            m.add_(p.grad.reshape(-1))
            k = max(1, int(m.numel() * self.ratio))
            idx = m.abs().topk(k).indices
            picks.append(idx)
            values.append(m[idx])
            m[idx] = 0.0
            sizes.append(k)
            self.dense += m.numel()
        idx, val = torch.cat(picks), torch.cat(values)
        self.sent += 2 * idx.numel()
        all_idx = [torch.empty_like(idx) for _ in range(self.world)]
        all_val = [torch.empty_like(val) for _ in range(self.world)]
        a = dist.all_gather(all_idx, idx, async_op=True)
        b = dist.all_gather(all_val, val, async_op=True)
        a.wait()
        b.wait()
        split_i = [t.split(sizes) for t in all_idx]
        split_v = [t.split(sizes) for t in all_val]
        for j, p in enumerate(self.params):
            out = torch.zeros(p.numel())
            for r in range(self.world):
                out.index_add_(0, split_i[r][j], split_v[r][j])
            p.grad.copy_((out / self.world).view_as(p))

    def residual(self):
        return torch.stack([m.norm() for m in self.memory]).norm().item()
