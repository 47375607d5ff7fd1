"""Remedies for hangs and collectives."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

REMEDIES = (
    Remedy(
        slug="balance-ranks",
        what="Move work that only one rank does out of the step (a thread, async saving), or share it among all ranks.",
        how=(
            "if rank == 0:\n"
            "    threading.Thread(target=save, args=(copy.deepcopy(state),)).start()  # the others do not wait"
        ),
        effect="saves the time per step that the finding names",
        safety="the thread must save a copy",
        source="torch.distributed.checkpoint.async_save does this for checkpoints",
    ),
    Remedy(
        slug="batch-isend-irecv",
        what="Post sends and receives together with batch_isend_irecv instead of one after the other.",
        how=(
            "ops = [dist.P2POp(dist.isend, x, right), dist.P2POp(dist.irecv, y, left)]\n"
            "for work in dist.batch_isend_irecv(ops):\n"
            "    work.wait()"
        ),
        effect="no rank has to go first",
        safety="changes no result; leave the tensors untouched until wait() returns",
        source="torch.distributed.batch_isend_irecv",
    ),
    Remedy(
        slug="bound-the-wait",
        what="Pass a timeout to the blocking call, or move it out of the step.",
        how="if not lock.acquire(timeout=60):\n    raise TimeoutError('lock still held after 60 s')",
        effect="the rank fails at the line that waited, instead of holding up every other rank until the collective times out",
        safety="changes no result",
        source="https://docs.python.org/3/library/threading.html#threading.Lock.acquire",
    ),
    Remedy(
        slug="call-on-every-rank",
        what="Call the collective on every rank of its group, or on none.",
        how="if rank == 0:\n    save(model)\ndist.barrier()  # outside: every rank calls it",
        effect="the ranks meet again at the same sequence number",
        safety="changes no result; ranks with nothing to contribute pass neutral values (zeros for a sum)",
        source="torch.distributed: collectives have to be called by all members of the group, in the same order",
    ),
    Remedy(
        slug="continue-the-process",
        what="Resume the stopped process (kill -CONT PID).",
        how="kill -CONT PID",
        effect="the rank resumes where it stopped, and the others with it",
        safety="changes no result",
        source="https://man7.org/linux/man-pages/man7/signal.7.html",
    ),
    Remedy(
        slug="decide-once",
        what="Decide once for all ranks: all_reduce or broadcast the value before the condition tests it.",
        how=(
            "better = torch.tensor([float(loss < best)], device=device)\n"
            "dist.broadcast(better, src=0)  # or all_reduce(better, op=ReduceOp.MAX)\n"
            "if better.item():\n    dist.barrier()"
        ),
        effect="one small collective per decision; every rank takes the same branch",
        safety="all ranks now follow rank 0's decision (or the joint one)",
        source="torch.distributed.broadcast",
    ),
    Remedy(
        slug="find-unused-parameters",
        what="Use every parameter in the loss on every rank, or pass find_unused_parameters=True to "
        "DistributedDataParallel.",
        how="DistributedDataParallel(model, find_unused_parameters=True)",
        effect="the reducer no longer waits for gradients that never arrive",
        safety="changes no result; costs one traversal of the autograd graph per step",
        source="torch.nn.parallel.DistributedDataParallel, find_unused_parameters",
    ),
    Remedy(
        slug="gather-backend-evidence",
        what="Check the network and the devices (NCCL_DEBUG=INFO, ibstat, dmesg): every rank has issued the "
        "collective.",
        how=(
            "TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1 NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET\n"
            "nvidia-smi --query-gpu=ecc.errors.uncorrected.volatile.total,clocks_throttle_reasons.active --format=csv"
        ),
        effect="identifies the host, link or device that does not answer",
        safety="writes logs only",
        source="PyTorch flight recorder; NCCL environment variables",
    ),
    Remedy(
        slug="group-for-the-thread",
        what="Give a thread that communicates a process group of its own.",
        how=(
            "of_writer = dist.new_group()  # on every rank, before the thread starts\n"
            "dist.all_gather_object(sizes, size, group=of_writer)"
        ),
        effect="calls of the thread meet those of the same thread on the other ranks, whatever the main thread does",
        safety="changes no result; a group costs connections, and on CUDA a communicator",
        source="torch.distributed: the collectives of a group have to be issued in the same order on all ranks",
    ),
    Remedy(
        slug="join-uneven-inputs",
        what="Give every rank the same number of batches, or wrap the loop in `with model.join():`.",
        how="with model.join():\n    for batch in loader:\n        ...",
        effect="ranks that have run out of batches shadow the collectives of the others",
        safety="join() divides by the initial number of ranks by default; drop_last=True drops the last samples",
        source="torch.nn.parallel.DistributedDataParallel.join; torch.utils.data.distributed.DistributedSampler(drop_last=True)",
    ),
    Remedy(
        slug="look-at-the-host",
        what="Look at the host that fell silent: whether it is up, whether others reach it, and what ended its launcher.",
        how="ssh HOST 'dmesg -T | tail; pgrep -af distdoctor'\nping -c 3 HOST",
        effect="shows whether the machine, the way to it or only its launcher is gone",
        safety="changes nothing; end ranks that live on before the job is started again",
        source="https://docs.pytorch.org/docs/stable/elastic/run.html",
    ),
    Remedy(
        slug="mend-the-first-failure",
        what="Fix the error on the rank that failed first; the other ranks failed as a consequence.",
        how="",
        effect="the other ranks no longer fail as a consequence",
        safety="changes no result",
        source="",
    ),
    Remedy(
        slug="new-group-on-every-rank",
        what="Call new_group (init_device_mesh) on every rank, for all groups, in the same order.",
        how="groups = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])]  # on every rank, member or not",
        effect="no rank waits in new_group",
        safety="changes no result",
        source="torch.distributed.new_group: all processes of the main group enter it, including those that will not be members",
    ),
    Remedy(
        slug="pair-send-with-recv",
        what="Pair every dist.send with a dist.recv of the same group, tag, size and dtype on its peer.",
        how=("if rank == 0:\n    dist.send(x, dst=1, tag=7)\nelif rank == 1:\n    dist.recv(x, src=0, tag=7)"),
        effect="both ends match",
        safety="changes no result",
        source="torch.distributed.send, recv",
    ),
    Remedy(
        slug="record-the-job",
        what="Start the job with `distdoctor run`, so that every call is recorded.",
        how="distdoctor run --nproc 2 train.py",
        effect="the next hang is explained call by call: which rank skipped which call, at which line",
        safety="changes no result",
        source="distdoctor run --help",
    ),
    Remedy(
        slug="same-dtype",
        what="Convert the tensor with .to(dtype) to one dtype on every rank before the collective.",
        how=("x = x.to(torch.float32)\ndist.all_reduce(x)"),
        effect="the members agree on what the bytes mean",
        safety="a narrower dtype loses precision",
        source="torch.distributed",
    ),
    Remedy(
        slug="same-operation",
        what="Call the same torch.distributed operation on every rank of the group.",
        how="dist.broadcast(x, src=0)  # on every rank, including those that only receive",
        effect="the ranks meet again at the same sequence number",
        safety="check which operation was intended: they give different results",
        source="torch.distributed: collectives have to be called by all members of the group, in the same order",
    ),
    Remedy(
        slug="same-order",
        what="Call the collectives of all groups in the same order on every rank.",
        how=("dist.all_reduce(a, group=tp)   # first tp, then dp, on every rank\ndist.all_reduce(b, group=dp)"),
        effect="no rank waits in one group for a rank that waits in another",
        safety="changes no result",
        source="torch.distributed, multiple process groups: calls on several groups must follow one global order",
    ),
    Remedy(
        slug="same-reduce-op",
        what="Pass the same ReduceOp on every rank.",
        how=("dist.all_reduce(x, op=dist.ReduceOp.SUM)\nx /= dist.get_world_size()"),
        effect="all ranks hold the same, correct result",
        safety="changes the results that were wrong; AVG is available on NCCL only",
        source="torch.distributed.ReduceOp",
    ),
    Remedy(
        slug="same-root",
        what="Pass the same src or dst on every rank of the group.",
        how="dist.broadcast(x, src=0)  # a global rank, the same everywhere",
        effect="the root sends the data that the others wait for",
        safety="changes no result",
        source="torch.distributed.broadcast: src is a global rank, group_src a rank within the group",
    ),
    Remedy(
        slug="same-shape",
        what="Pass tensors of the same size to the collective on every rank (pad them, or use "
        "all_to_all_single with split sizes).",
        how=(
            "size = torch.tensor([x.numel()])\n"
            "dist.all_reduce(size, op=dist.ReduceOp.MAX)\n"
            "x = torch.nn.functional.pad(x.flatten(), (0, int(size) - x.numel()))"
        ),
        effect="costs one extra small all_reduce per call with varying sizes",
        safety="padding must be neutral for the computation (zeros for a sum) and removed afterwards",
        source="torch.distributed.all_reduce, all_gather; all_to_all_single takes sizes per rank",
    ),
    Remedy(
        slug="start-every-rank",
        what="Start every rank, and call init_process_group before anything that may block.",
        how="torchrun --nnodes 2 --node-rank 1 ... on the second node",
        effect="the rendezvous completes when the last rank arrives",
        safety="changes no result",
        source="https://docs.pytorch.org/docs/stable/elastic/run.html",
    ),
    Remedy(
        slug="run-on-every-rank",
        what="Run a sharded module on every rank in every step, with a dummy input where a rank has none.",
        how=(
            "if image is None:\n"
            "    h = h + 0.0 * self.vision(torch.zeros(1, 3, 224, 224)).sum()  # the gather needs all ranks\n"
            "else:\n"
            "    h = h + self.vision(image)"
        ),
        effect="every rank gathers the module's parameters and reduces its gradients in the same order",
        safety="the dummy adds zero to the loss and to the gradients",
        source="torch.distributed.fsdp.fully_shard: parameters are all-gathered in the pre-forward hook",
    ),
    Remedy(
        slug="state-dict-on-every-rank",
        what="Call the sharded state_dict (or torch.distributed.checkpoint.save) on every rank; write a "
        "plain file on one rank.",
        how=(
            "state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))  # every rank\n"
            "if rank == 0:\n"
            "    torch.save(state, path)"
        ),
        effect="all ranks take part in gathering the shards",
        safety="changes no result",
        source="torch.distributed.checkpoint.state_dict.get_model_state_dict; FullyShardedDataParallel.state_dict",
    ),
    Remedy(
        slug="stay-until-the-end",
        what="Run the same number of steps on every rank (model.join() for uneven inputs), and exit together.",
        how=(
            "steps = torch.tensor([len(loader)])\n"
            "dist.all_reduce(steps, op=dist.ReduceOp.MIN)\n"
            "for _, batch in zip(range(int(steps)), loader):\n    ..."
        ),
        effect="no rank waits for one that has left",
        safety="ranks with more batches drop the surplus steps",
        source="torch.distributed.destroy_process_group; torch.distributed.algorithms.join.Join",
    ),
    Remedy(
        slug="time-out-the-loader",
        what="Pass timeout= to the DataLoader, bound the waits of its workers, and start them with "
        "multiprocessing_context='spawn' if a lock was held at the fork.",
        how="DataLoader(dataset, num_workers=4, timeout=120)",
        effect="the rank fails after the timeout with an error that names the loader, instead of holding up every other rank",
        safety="changes no result",
        source="https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.DataLoader",
    ),
    Remedy(
        slug="leave-in-order",
        what="Let nothing keep the process group when it is destroyed: no wrapped model, no handle, no late import.",
        how=(
            "import torch.distributed.nn  # first imported after init_process_group, it would keep the group\n"
            "def main():\n    dist.init_process_group()\n    train()  # the model is local to train()\n"
            "    dist.destroy_process_group()"
        ),
        effect="the group's threads end while the interpreter is still running",
        safety="changes no result",
        source="https://github.com/pytorch/pytorch/pull/179291",
    ),
    Remedy(
        slug="raise-the-timeout",
        what="Give the group a timeout longer than any one rank's own work, or do that work before creating the group.",
        how="dist.init_process_group(timeout=timedelta(minutes=30))",
        effect="the job waits instead of failing",
        safety="changes no result; a real hang is noticed later",
        source="torch.distributed.init_process_group(timeout=...): 30 min with gloo, 10 min with NCCL",
    ),
    Remedy(
        slug="use-the-subgroup",
        what="Pass the intended sub-group to the collective (group=...).",
        how="dist.all_reduce(x, group=tp_group)",
        effect="the call no longer waits for the whole default group",
        safety="changes results if the wrong group went unnoticed",
        source="torch.distributed: group=None is the default group of all ranks",
    ),
    Remedy(
        slug="wait-for-the-handle",
        what="Call handle.wait() before using the tensor.",
        how="handle = dist.all_reduce(x, async_op=True)\n...  # work that does not touch x\nhandle.wait()",
        effect="x holds the result; work between the two lines still overlaps with communication",
        safety="changes results that depended on timing; omitting async_op does the same without overlap",
        source="torch.distributed, Synchronous and asynchronous collective operations",
    ),
    Remedy(
        slug="watch-from-the-start",
        what="Run the job again under `distdoctor run`, which compares the ranks while the job runs and ends "
        "it where they diverge.",
        how="distdoctor run --stop-on DD105 --stop-on DD107 --nproc 8 train.py",
        effect="reports the call, the ranks and the line within seconds of the divergence",
        safety="changes no result",
        source="distdoctor run --help",
    ),
)
