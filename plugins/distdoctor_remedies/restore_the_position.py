"""Keep the place in the data with the checkpoint, and go on there."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

RESTORE_THE_POSITION = Remedy(
    slug="restore-the-position",
    what="Save the epoch and the steps done in it; on resume tell the sampler the epoch and leave out what was drawn.",
    how="""checkpoint = {"model": ..., "epoch": epoch, "steps_done": step_in_epoch}
# resumed: the same order, from where it had stopped; the skipped samples are not read
sampler.set_epoch(epoch)
rest = list(sampler)[steps_done * batch_size :]
loader = DataLoader(dataset, batch_size=batch_size, sampler=rest if steps_done else sampler)""",
    effect="No sample of the epoch under way repeats, none is lost.",
    safety="the order stays that of the uninterrupted job",
    source="torchdata StatefulDataLoader (state_dict, load_state_dict) does the same for any loader",
)
