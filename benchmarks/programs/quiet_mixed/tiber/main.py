import torch
import torch.distributed as dist

from gan import Adversaries
from nets import critic, generator
from ring import ring_loader

Z = 8


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(2)
    pair = Adversaries(generator(Z, 2), critic(2), Z, rank)
    loader, sampler = ring_loader(2048, 64, seed=2)
    step = 0
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for (real,) in loader:
            d = pair.disc_turn(real)
            step += 1
            if step % 2 == 0:
                g = pair.gen_turn(len(real))
                if rank == 0 and step % 8 == 0:
                    print(f"step {step} d {d:.3f} g {g:.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
