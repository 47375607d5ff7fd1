"""A signal handler issues collectives of its own, again and again, wherever the training happens to be."""

import signal

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
alone = [dist.new_group([other]) for other in range(dist.get_world_size())][rank]
handled, handles = 0, []


def save_at_signal(*_: object) -> None:
    global handled
    handled += 1
    dist.all_reduce(torch.ones(handled), group=alone)
    handles.append(dist.all_reduce(torch.ones(handled), group=alone, async_op=True))
    signal.setitimer(signal.ITIMER_REAL, 0.0002)


signal.signal(signal.SIGALRM, save_at_signal)
signal.setitimer(signal.ITIMER_REAL, 0.0002)
for step in range(600):
    dist.all_reduce(torch.ones(step + 1))
signal.setitimer(signal.ITIMER_REAL, 0)
signal.signal(signal.SIGALRM, signal.SIG_IGN)
for handle in handles:
    handle.wait()
dist.barrier()
print(f"handled {handled}", flush=True)
dist.destroy_process_group()
