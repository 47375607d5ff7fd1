import datetime
import tempfile

import torch.distributed as dist

from trainer import Config, Trainer


def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
    path = [tempfile.mkdtemp(prefix="ckpt") if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(path, src=0)
    cfg = Config(path=path[0])

    trainer = Trainer(cfg, resume=False)
    trainer.run(until=cfg.save_at)
    trainer.save()
    del trainer

    trainer = Trainer(cfg, resume=True)
    trainer.run(until=cfg.iterations)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
