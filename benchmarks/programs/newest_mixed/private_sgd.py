"""Per-example clipping with Gaussian noise, Poisson sampling on each process."""
import math
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.func import functional_call, grad, vmap

CLIP, NOISE, LR, STEPS = 1.0, 0.8, 0.4, 120


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(11)
    net = nn.Sequential(nn.Linear(24, 48), nn.Tanh(), nn.Linear(48, 4))
    params = {k: v.detach().clone() for k, v in net.named_parameters()}
    g = torch.Generator().manual_seed(5)
    x = torch.randn(4000, 24, generator=g)
    y = (x @ torch.randn(24, 4, generator=g)).argmax(1)
    mine_x, mine_y = x[rank::world], y[rank::world]
    q = 64 / len(mine_x)
    sampler = torch.Generator().manual_seed(900 + rank)
    noise_rng = torch.Generator().manual_seed(int.from_bytes(__import__("os").urandom(6), "big"))

    def loss_fn(p, xi, yi):
        return nn.functional.cross_entropy(functional_call(net, p, (xi[None],)), yi[None])

    per_sample = vmap(grad(loss_fn), in_dims=(None, 0, 0), randomness="different")
    expected = 64 * world
    for step in range(STEPS):
        pick = torch.rand(len(mine_x), generator=sampler) < q
        bx, by = mine_x[pick], mine_y[pick]
        if len(bx):
            gs = per_sample(params, bx, by)
            norms = torch.stack([v.flatten(1).norm(dim=1) for v in gs.values()], 1).norm(dim=1)
            scale = (CLIP / (norms + 1e-6)).clamp(max=1.0)
            summed = {k: torch.einsum("n,n...->...", scale, v) for k, v in gs.items()}
        else:
            summed = {k: torch.zeros_like(v) for k, v in params.items()}
        for k in summed:
            summed[k] += torch.randn(summed[k].shape, generator=noise_rng) * NOISE * CLIP / math.sqrt(world)
            dist.all_reduce(summed[k])
            params[k] = params[k] - LR * summed[k] / expected
        if step % 20 == 0:
            acc = (functional_call(net, params, (mine_x,)).argmax(1) == mine_y).float().mean()
            print(f"[{rank}] step {step} batch {len(bx)} clipped {(scale < 1).float().mean():.2f} acc {acc:.3f}", flush=True)
    ref = params["0.weight"].clone()
    dist.broadcast(ref, 0)
    assert torch.equal(ref, params["0.weight"])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
