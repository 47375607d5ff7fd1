import datetime

import torch.distributed as dist

from recipe import Recipe


def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
    recipe = Recipe()
    for step in range(25):
        loss, norm = recipe.step()
        if recipe.rank == 0 and step % 6 == 0:
            print(f"step {step} loss {loss:.4f} norm {norm:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
