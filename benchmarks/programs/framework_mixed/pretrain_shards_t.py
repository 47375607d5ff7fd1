import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sharded_utils import CharLM, shard, token_stream
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.utils.data import DataLoader, DistributedSampler


class Checkpointer:
    def __init__(self, folder, every):
        self.folder, self.every = folder, every

    def maybe_save(self, step, model):
        if step % self.every:
            return
        state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        if dist.get_rank() == 0:
            os.makedirs(self.folder, exist_ok=True)
            torch.save(state, os.path.join(self.folder, f"step{step}.pt"))
        dist.barrier()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=36)
    ap.add_argument("--save-every", type=int, default=12)
    ap.add_argument("--out", default="shards_ckpt")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = shard(CharLM(depth=2))
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    saver = Checkpointer(args.out, args.save_every)
    data = token_stream(288, 32)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, 8, sampler=sampler, drop_last=True)
    step, epoch = 0, 0
    while step < args.steps:
        sampler.set_epoch(epoch)
        for ids in loader:
            loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            opt.zero_grad()
            step += 1
            saver.maybe_save(step, model)
            if rank == 0 and step % 6 == 0:
                print(f"step {step} loss {loss.item():.3f}", flush=True)
            if step >= args.steps:
                break
        epoch += 1
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
