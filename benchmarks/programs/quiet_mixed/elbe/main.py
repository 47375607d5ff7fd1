import torch
import torch.distributed as dist

from settings import Settings
from trainer import Trainer


def main():
    dist.init_process_group("gloo")
    cfg = Settings()
    torch.manual_seed(cfg.seed)
    trainer = Trainer(cfg)
    for epoch in range(cfg.epochs):
        loss = trainer.epoch(epoch)
        auc = trainer.evaluate()
        if dist.get_rank() == 0:
            print(f"[{epoch}] loss={loss:.4f} hit={auc:.3f}", flush=True)
    trainer.export("towers.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
