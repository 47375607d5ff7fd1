import torch
import torch.distributed as dist


class Unstable(RuntimeError):
    pass


def agreed(ok):
    t = torch.tensor([1 if ok else 0])
    dist.all_reduce(t, op=dist.ReduceOp.MIN)
    return bool(t.item())


def together(fn, attempts, before_retry):
    """Runs ``fn`` on every process until it went well on all of them."""
    for n in range(1, attempts + 1):
        try:
            out, ok = fn(n), True
        except Unstable as e:
            print(f"[{dist.get_rank()}] attempt {n}: {e}", flush=True)
            out, ok = None, False
        if agreed(ok):
            return out
        before_retry(n)
    raise RuntimeError(f"no success in {attempts} attempts")
