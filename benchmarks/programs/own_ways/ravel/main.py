import argparse
import math
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from metrics import MetricLogger
from model import Decoder, ModelArgs


@dataclass
class JobConfig:
    steps: int = 24
    warmup: int = 5
    batch: int = 8
    lr: float = 2e-3
    max_norm: float = 1.0
    log_every: int = 4
    eval_every: int = 12
    sample_every: int = 12
    seed: int = 0
    bf16: bool = False


def load_config():
    ap = argparse.ArgumentParser()
    for name, value in vars(JobConfig()).items():
        if isinstance(value, bool):
            ap.add_argument(f"--{name}", action="store_true")
        else:
            ap.add_argument(f"--{name}", type=type(value), default=value)
    return JobConfig(**vars(ap.parse_args()))


class Stream:
    """Synthetic token sequences: noisy arithmetic progressions modulo the vocabulary."""

    def __init__(self, args, batch, rank, world, seed):
        self.args, self.batch, self.rank, self.world = args, batch, rank, world
        self.gen = torch.Generator().manual_seed(seed)

    def next(self):
        n = self.batch * self.world
        a = self.args
        start = torch.randint(a.vocab, (n, 1), generator=self.gen)
        step = torch.randint(1, 6, (n, 1), generator=self.gen)
        seq = (start + step * torch.arange(a.context + 1)) % a.vocab
        flip = torch.rand(seq.shape, generator=self.gen) < 0.05
        seq = torch.where(flip, torch.randint(a.vocab, seq.shape, generator=self.gen), seq)
        mine = seq[self.rank * self.batch:(self.rank + 1) * self.batch]
        return mine[:, :-1], mine[:, 1:]


def parallelize(model, mesh, cfg):
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) \
        if cfg.bf16 else MixedPrecisionPolicy()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    return fully_shard(model, mesh=mesh, mp_policy=policy)


@torch.no_grad()
def evaluate(model, stream, batches=2):
    model.eval()
    total = torch.zeros(2)
    for _ in range(batches):
        x, y = stream.next()
        loss = F.cross_entropy(model(x).float().flatten(0, 1), y.flatten(), reduction="sum")
        total += torch.tensor([loss.item(), y.numel()])
    dist.all_reduce(total)
    model.train()
    return (total[0] / total[1]).item()


@torch.no_grad()
def complete(model, prompt, length):
    model.eval()
    ids = torch.tensor([prompt])
    for _ in range(length):
        logits = model(ids[:, -model.args.context:])[:, -1].float()
        ids = torch.cat([ids, logits.argmax(-1, keepdim=True)], dim=1)
    model.train()
    return ids[0].tolist()


def main():
    cfg = load_config()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(cfg.seed)
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("dp",))
    args = ModelArgs()
    model = parallelize(Decoder(args), mesh, cfg)
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr, betas=(0.9, 0.95))
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: min((s + 1) / cfg.warmup,
                                 0.5 * (1 + math.cos(math.pi * s / cfg.steps))))
    train, valid = Stream(args, cfg.batch, rank, world, 100), Stream(args, cfg.batch, rank, world, 200)
    metrics = MetricLogger(rank, cfg.log_every)

    for step in range(1, cfg.steps + 1):
        x, y = train.next()
        metrics.count(x.numel() * world)
        loss = F.cross_entropy(model(x).float().flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.max_norm)
        optimizer.step()
        scheduler.step()
        norm = grad_norm.full_tensor().item()

        if metrics.due(step):
            mean_loss = loss.detach().clone()
            dist.all_reduce(mean_loss)
            if rank == 0:
                metrics.write(step, loss=round(mean_loss.item() / world, 4),
                              grad_norm=round(norm, 4),
                              lr=scheduler.get_last_lr()[0])
        if step % cfg.eval_every == 0:
            value = evaluate(model, valid)
            if rank == 0:
                print(f"step {step} validation {value:.4f}", flush=True)
        if rank == 0 and step % cfg.sample_every == 0:
            print(f"step {step} sample {complete(model, [3, 5, 7, 9], 8)}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
