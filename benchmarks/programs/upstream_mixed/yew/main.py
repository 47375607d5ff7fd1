"""Pre-training and fine-tuning, one after the other."""
import datetime
import tempfile

import torch.distributed as dist

from stages import Stage, build, load_trunk, save, train


def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
    path = [tempfile.mkdtemp(prefix="stage") if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(path, src=0)

    pretrain = Stage("pretrain", steps=30, lr=3e-3, warmup=5, classes=8, seed=100)
    model = build(pretrain.classes)
    optimizer, schedule = train(model, pretrain)
    save(path[0], model, optimizer, schedule, pretrain)

    finetune = Stage("finetune", steps=25, lr=1e-3, warmup=10, classes=3, seed=200)
    model = build(finetune.classes)
    load_trunk(path[0], model)
    train(model, finetune)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
