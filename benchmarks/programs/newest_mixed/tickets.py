"""Iterative magnitude pruning with rewinding to the early weights."""
import copy
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.utils.prune as prune
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(20, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 5))
    layers = [net[0], net[2]]
    for layer in layers:
        prune.identity(layer, "weight")
    early = None
    w = torch.randn(20, 5, generator=torch.Generator().manual_seed(1))
    for rnd in range(5):
        ddp = DDP(net)
        opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 50)
        g = torch.Generator().manual_seed(1000 + rank)
        for step in range(50):
            x = torch.randn(48, 20, generator=g)
            loss = nn.functional.cross_entropy(ddp(x), (x @ w).argmax(1))
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            if rnd == 0 and step == 9:
                early = copy.deepcopy({k: v for k, v in net.state_dict().items() if not k.endswith("_mask")})
        kept = sum(l.weight_mask.sum().item() for l in layers) / sum(l.weight_mask.numel() for l in layers)
        if rank == 0:
            print(f"round {rnd} kept {kept:.3f} final loss {loss.item():.4f}", flush=True)
        if rnd < 4:
            prune.global_unstructured([(l, "weight") for l in layers], prune.L1Unstructured, amount=0.3)
            net.load_state_dict(early, strict=False)
    masks = torch.cat([l.weight_mask.flatten() for l in layers])
    vec = torch.cat([p.detach().flatten() for p in net.parameters()] + [masks])
    ref = vec.clone()
    dist.broadcast(ref, 0)
    assert torch.equal(ref, vec)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
