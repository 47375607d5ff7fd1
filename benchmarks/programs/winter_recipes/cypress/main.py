import argparse
import logging
import os
import tempfile

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from lora import CausalLM, adapter_state, inject
from trainer import SFTTrainer


def instruction_data(n, length=48, vocab=256, seed=0):
    g = torch.Generator().manual_seed(seed)
    prompt = torch.randint(16, vocab, (n, length // 2), generator=g)
    answer = (prompt.flip(1) + 7) % vocab
    ids = torch.cat([prompt, answer], 1)
    labels = ids.clone()
    labels[:, : length // 2] = -100
    return TensorDataset(ids, labels)


def main():
    p = argparse.ArgumentParser("lora sft")
    p.add_argument("--examples", type=int, default=712)
    p.add_argument("--batch-size", type=int, default=8)
    p.add_argument("--gradient-accumulation-steps", type=int, default=8)
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--lr", type=float, default=3e-3)
    p.add_argument("--rank", type=int, default=8, help="adapter rank")
    p.add_argument("--out", default=os.path.join(tempfile.gettempdir(), f"lora-{os.environ.get('MASTER_PORT', 0)}"))
    args = p.parse_args()
    dist.init_process_group("gloo")
    logging.basicConfig(level=logging.INFO if dist.get_rank() == 0 else logging.WARNING, format="%(asctime)s %(message)s")
    torch.manual_seed(0)
    model = DDP(inject(CausalLM(), r=args.rank))
    params = [p for p in model.parameters() if p.requires_grad]
    logging.info("trainable parameters: %d", sum(p.numel() for p in params))
    data = instruction_data(args.examples)
    loader = DataLoader(data, args.batch_size, sampler=DistributedSampler(data, drop_last=True), drop_last=True)
    trainer = SFTTrainer(model, torch.optim.AdamW(params, lr=args.lr, weight_decay=0.0), loader, args.gradient_accumulation_steps)
    for epoch in range(args.epochs):
        trainer.train_epoch(epoch)
    if dist.get_rank() == 0:
        os.makedirs(args.out, exist_ok=True)
        torch.save(adapter_state(model.module), os.path.join(args.out, "adapter.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
