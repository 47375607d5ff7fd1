"""Expert-parallel MoE language model, data parallel over all ranks, experts over --ep ranks.

    torchrun --nproc_per_node 4 train.py --ep 2
"""
import argparse
import logging
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh

from moe import ExpertParallelMoE

log = logging.getLogger("moe")


class MoEModel(nn.Module):
    def __init__(self, vocab, dim, hidden, num_experts, layers, ep_group):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.mix = nn.ModuleList(nn.GRU(dim, dim, batch_first=True) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(layers))
        self.moe = nn.ModuleList(ExpertParallelMoE(dim, hidden, num_experts, ep_group) for _ in range(layers))
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        x, aux = self.embed(ids), 0.0
        for mix, norm, moe in zip(self.mix, self.norms, self.moe):
            x = x + mix(x)[0]
            y, a = moe(norm(x))
            x, aux = x + y, aux + a
        return self.head(x), aux


class GradientReducer:
    """Averages gradients once per step: dense parameters over everybody, experts over their replicas."""

    def __init__(self, model, dp_group, edp_group):
        self.dp_group, self.edp_group = dp_group, edp_group
        params = list(model.parameters())
        self.experts = [p for p in params if getattr(p, "expert_parallel", False)]
        self.dense = [p for p in params if not getattr(p, "expert_parallel", False)]

    @staticmethod
    def _reduce(params, group, divisor):
        flat = torch.cat([p.grad.reshape(-1) for p in params])
        dist.all_reduce(flat, group=group)
        flat.div_(divisor)
        for p, g in zip(params, flat.split([p.numel() for p in params])):
            p.grad.copy_(g.view_as(p))

    def __call__(self):
        self._reduce(self.dense, self.dp_group, dist.get_world_size(self.dp_group))
        self._reduce(self.experts, self.edp_group, dist.get_world_size(self.dp_group))


def batches(vocab, batch_size, seq_len, rank, seed):
    table = torch.randint(0, vocab, (vocab, 3), generator=torch.Generator().manual_seed(seed))
    g = torch.Generator().manual_seed(seed + 17 * (rank + 1))
    while True:
        ids = torch.zeros(batch_size, seq_len + 1, dtype=torch.long)
        ids[:, 0] = torch.randint(0, vocab, (batch_size,), generator=g)
        for t in range(seq_len):
            ids[:, t + 1] = table[ids[:, t], torch.randint(0, 3, (batch_size,), generator=g)]
        yield ids[:, :-1], ids[:, 1:]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--ep", type=int, default=2)
    p.add_argument("--experts", type=int, default=8)
    p.add_argument("--layers", type=int, default=2)
    p.add_argument("--steps", type=int, default=220)
    p.add_argument("--batch-size", type=int, default=12)
    p.add_argument("--seq-len", type=int, default=24)
    p.add_argument("--lr", type=float, default=0.2)
    p.add_argument("--aux-weight", type=float, default=0.01)
    p.add_argument("--seed", type=int, default=29)
    p.add_argument("--out", default=None)
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(message)s")
    mesh = init_device_mesh("cpu", (world // args.ep, args.ep), mesh_dim_names=("edp", "ep"))

    torch.manual_seed(args.seed)
    model = MoEModel(256, 64, 192, args.experts, args.layers, mesh.get_group("ep"))
    reduce_gradients = GradientReducer(model, dist.group.WORLD, mesh.get_group("edp"))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    stream = batches(256, args.batch_size, args.seq_len, rank, args.seed)

    for step in range(args.steps):
        ids, labels = next(stream)
        logits, aux = model(ids)
        ce = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        optimizer.zero_grad(set_to_none=True)
        (ce + args.aux_weight * aux).backward()
        reduce_gradients()
        optimizer.step()
        if step % 10 == 0:
            stats = torch.stack([ce.detach(), aux.detach()])
            dist.all_reduce(stats)
            log.info("step %3d ce %.4f aux %.3f", step, *(stats / world).tolist())

    out = args.out or tempfile.mkdtemp()
    torch.save(model.state_dict(), os.path.join(out, f"moe_rank{rank}.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
