"""Pipeline-parallel language model, two stages."""
import datetime

import torch
import torch.distributed as dist

from pipeline import VOCAB, Engine


def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(30 + rank)
    engine = Engine(rank, world, micro_batches=4, lr=2e-3)
    gen = torch.Generator().manual_seed(8)
    for step in range(45):
        start = torch.randint(0, VOCAB, (8, 1), generator=gen)
        ids = (start + torch.arange(65)) % VOCAB
        engine.train_step(ids[:, :-1], ids[:, 1:])
        if engine.last and step % 15 == 0:
            print(f"step {step} loss {engine.forward_data[-1]['loss'].item():.4f}", flush=True)
    if engine.last:
        print({k: round(v, 4) for k, v in engine.summary().items()}, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
