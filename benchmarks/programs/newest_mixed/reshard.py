"""Training that stores a world-size independent position and continues elsewhere."""
import argparse
import os
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

N, GLOBAL_BATCH, EPOCHS = 3072, 48, 3


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--stop-at", type=int, default=0)
    ap.add_argument("--ckpt", default="state.pt")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    assert GLOBAL_BATCH % world == 0
    g = torch.Generator().manual_seed(0)
    x = torch.randn(N, 12, generator=g)
    y = torch.sin(x @ torch.linspace(-1, 1, 12)).unsqueeze(1)
    torch.manual_seed(5)
    net = DDP(nn.Sequential(nn.Linear(12, 64), nn.SiLU(), nn.Linear(64, 1)))
    opt = torch.optim.AdamW(net.parameters(), lr=3e-3)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 1e-2, total_steps=EPOCHS * N // GLOBAL_BATCH)
    consumed = 0
    if os.path.exists(args.ckpt):
        blob = torch.load(args.ckpt, weights_only=True)
        net.module.load_state_dict(blob["net"])
        opt.load_state_dict(blob["opt"])
        sched.load_state_dict(blob["sched"])
        consumed = blob["consumed"]
        print(f"[{rank}/{world}] continuing at sample {consumed}", flush=True)
    per = GLOBAL_BATCH // world
    while consumed < EPOCHS * N:
        epoch, at = divmod(consumed, N)
        order = torch.randperm(N, generator=torch.Generator().manual_seed(epoch))
        chunk = order[at:at + GLOBAL_BATCH][rank * per:(rank + 1) * per]
        loss = nn.functional.mse_loss(net(x[chunk]), y[chunk])
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        consumed += GLOBAL_BATCH
        step = consumed // GLOBAL_BATCH
        if rank == 0 and step % 16 == 0:
            print(f"step {step} samples {consumed} lr {sched.get_last_lr()[0]:.5f} loss {loss.item():.4f}", flush=True)
        if args.stop_at and step == args.stop_at:
            break
    if rank == 0:
        torch.save({"net": net.module.state_dict(), "opt": opt.state_dict(), "sched": sched.state_dict(),
                    "consumed": consumed}, args.ckpt + ".tmp")
        os.replace(args.ckpt + ".tmp", args.ckpt)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
