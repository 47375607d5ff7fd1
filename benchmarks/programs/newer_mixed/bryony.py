"""Tiny GPT-2 with tied input and output embeddings, saved and taken up again."""
import argparse
import os
import tempfile

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from transformers import GPT2Config, GPT2LMHeadModel


def config():
    return GPT2Config(vocab_size=48, n_positions=16, n_embd=24, n_layer=1, n_head=2,
                      resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0)


class Counting:
    def __init__(self, rank, length=14):
        self.gen = torch.Generator().manual_seed(500 + rank)
        self.length = length

    def batch(self, n):
        start = torch.randint(0, 48, (n, 1), generator=self.gen)
        return (start + torch.arange(self.length)) % 48


def fresh_empty():
    """Builds without memory first, then fills; the tie has to be made again after to_empty."""
    with torch.device("meta"):
        model = GPT2LMHeadModel(config())
    model.to_empty(device="cpu")
    model.tie_weights()
    return model


def optimizer_for(model, lr):
    seen, decay, plain = set(), [], []
    for name, p in model.named_parameters(remove_duplicate=False):
        if id(p) in seen:
            continue
        seen.add(id(p))
        (decay if p.ndim >= 2 and "wpe" not in name else plain).append(p)
    return torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}], lr=lr)


def train(model, data, steps, lr):
    ddp = DDP(model)
    opt = optimizer_for(model, lr)
    for _ in range(steps):
        ids = data.batch(12)
        loss = ddp(input_ids=ids, labels=ids).loss
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=16)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    box = [tempfile.mkdtemp(prefix="bryony_") if rank == 0 else None]
    dist.broadcast_object_list(box, src=0)
    path = os.path.join(box[0], "weights.pt")
    model = GPT2LMHeadModel(config())
    data = Counting(rank)
    a = train(model, data, args.steps, 5e-3)
    if rank == 0:
        state = model.state_dict()
        state.pop("lm_head.weight")
        torch.save(state, path)
    dist.barrier()
    again = fresh_empty()
    missing, unexpected = again.load_state_dict(torch.load(path, weights_only=True), strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}
    assert again.lm_head.weight is again.transformer.wte.weight
    b = train(again, data, args.steps, 3e-3)
    if rank == 0:
        print(f"first part {a:.4f}, second part {b:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
