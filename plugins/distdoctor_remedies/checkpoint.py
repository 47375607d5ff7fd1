"""Remedies for checkpoints and resumption."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

REMEDIES = (
    Remedy(
        slug="broadcast-the-folder",
        what="Name the folder on rank 0 alone, and broadcast the name to all ranks.",
        how="""name = [make_name() if dist.get_rank() == 0 else None]
dist.broadcast_object_list(name, src=0)
folder = name[0]""",
        effect="One folder holds all parts of the checkpoint.",
        safety="changes no training",
        source="torch.distributed.broadcast_object_list",
    ),
    Remedy(
        slug="copy-before-the-thread",
        what="Copy what is saved before the thread begins (clone, or torch.distributed.checkpoint.async_save, which does), "
        "or wait for the thread before the next optimizer step.",
        how="""state = {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}
threading.Thread(target=torch.save, args=(state, path)).start()""",
        effect="Every tensor of the checkpoint is of one step.",
        safety="takes memory for a copy until the thread is through",
        source="torch.distributed.checkpoint.async_save: the state is copied before the save goes on in a thread",
    ),
    Remedy(
        slug="gather-before-the-save",
        what="Gather the whole tensors on every rank, and write them on one; or let every rank write its part.",
        how="""state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))  # every rank
if dist.get_rank() == 0:
    torch.save(state, path)
# or, from all ranks at once: dcp.save({"model": get_model_state_dict(model)}, checkpoint_id=folder)""",
        effect="The checkpoint holds the whole model.",
        safety="changes no training; rank 0 holds the model once more in host memory while it writes",
        source="torch.distributed.checkpoint.state_dict.StateDictOptions",
    ),
    Remedy(
        slug="barrier-after-save",
        what="Call barrier on every rank after the save and before any rank loads.",
        how="""if rank == 0:
    torch.save(model.module.state_dict(), path)
dist.barrier()                                  # on every rank
model.module.load_state_dict(torch.load(path, map_location="cpu"))""",
        effect="All ranks load the same, just written file.",
        safety="the ranks wait for the disk once per save",
        source="PyTorch, DDP tutorial: Save and load checkpoints",
    ),
    Remedy(
        slug="map-location",
        what="Pass map_location to torch.load.",
        how="""state = torch.load(path, map_location="cpu", mmap=True)
model.load_state_dict(state)                    # copies onto the model's own device""",
        effect="No rank touches another rank's GPU.",
        safety="changes no result",
        source="torch.load",
    ),
    Remedy(
        slug="restore-everything",
        what="Save the complete training state, and load it on every rank.",
        how="""state = {
    "model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict(),
    "scaler": scaler.state_dict(), "ema": ema.state_dict(), "step": step, "rng": torch.get_rng_state(),
}
...
state = torch.load(path, map_location="cpu")    # on every rank
optimizer.load_state_dict(state["optimizer"])   # and each of the others""",
        effect="The loss continues where it was.",
        safety="changes no uninterrupted training",
        source="PyTorch, Saving and Loading a General Checkpoint",
    ),
    Remedy(
        slug="save-on-rank-zero",
        what="Save on one rank, to a temporary name first, and let the others wait.",
        how="""if dist.get_rank() == 0:
    torch.save(state, path + ".tmp")
    os.replace(path + ".tmp", path)             # a reader never sees half a file
dist.barrier()""",
        effect="One write instead of one per rank, and no torn file.",
        safety="for sharded states use torch.distributed.checkpoint.save, which every rank calls",
        source="PyTorch, DDP tutorial: Save and load checkpoints",
    ),
    Remedy(
        slug="save-per-rank",
        what="Write one file per rank, with the rank in its name, and read one's own; or gather the parts on one rank first.",
        how="""torch.save(state, f"{path}.rank{dist.get_rank()}")
...
state = torch.load(f"{path}.rank{dist.get_rank()}", map_location="cpu")""",
        effect="The parts of every rank are kept.",
        safety="changes no training; such files fit a job of as many ranks",
        source="torch.distributed.checkpoint, which does the same for sharded states",
    ),
    Remedy(
        slug="save-the-module",
        what="Save the module inside the wrapper, and load with strict=True.",
        how="""torch.save(ddp_model.module.state_dict(), path)  # was ddp_model.state_dict()
# an old checkpoint:
torch.nn.modules.utils.consume_prefix_in_state_dict_if_present(state, "module.")
model.load_state_dict(state)                    # strict: missing names are an error""",
        effect="The checkpoint fits the model with and without a wrapper.",
        safety="changes no training",
        source="torch.nn.modules.utils.consume_prefix_in_state_dict_if_present",
    ),
    Remedy(
        slug="tie-again",
        what="Tie the weights again after load_state_dict(assign=True), before the wrapper and the optimizer are made.",
        how="""model.load_state_dict(state, assign=True)
model.head.weight = model.embed.weight      # or model.tie_weights(), where the model has it
model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters())""",
        effect="One parameter again: as many weights as meant, and gradients of both uses in it.",
        safety="what was trained apart meanwhile is lost on one of the two",
        source="torch.nn.Module.load_state_dict, assign",
    ),
    Remedy(
        slug="wait-for-the-save",
        what="Wait for the save before the next one starts and before the job ends; write the pointer last.",
        how="""future = dcp.async_save(state, checkpoint_id=folder)
...
future.result()                                 # before the next save, and before destroy_process_group()
with open("latest", "w") as file:               # only now
    file.write(folder)""",
        effect="The newest checkpoint is always complete.",
        safety="the job ends later by the time that the write takes",
        source="PyTorch, Asynchronous Saving with Distributed Checkpoint",
    ),
)
