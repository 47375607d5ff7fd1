"""A stage of a pipeline that sends fewer messages than the next one receives: no order of sends and receives is wrong in it."""

from __future__ import annotations

from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import LIKELY, Finding
from distdoctor.diagnosis.hang.point_to_point import ANYBODY
from distdoctor.testing import Script, recording

CHECKS = [check for check in PLUGINS.checks.values() if check.family == "hang"]
SCHEDULE = """\
import torch.distributed as dist
class Schedule:
    def sizes(self, batch):
        if self.first:
            return [self.micro] * (batch // self.micro)
        return [self.micro] * -(-batch // self.micro)
    def step(self, batch):
        sizes = self.sizes(batch)
        for size in sizes:
            if self.first:
                dist.send(self.stage(size), 1)
            else:
                dist.recv(self.room(size), 0)
        for size in sizes:
            if self.first:
                dist.recv(self.room(size), 1)
            else:
                dist.send(self.gradient(size), 0)
"""


def rounds(*counts: tuple[int, int]) -> Script:
    """In each round so many messages from rank 0, and so many receives of rank 1; then as many the other way."""
    script = recording(ranks=2)
    for sent, received in counts:
        for number in range(max(sent, received)):
            if number < sent:
                script.send(0, 1, [8], site="pipe.py:11 step")
            if number < received:
                script.recv(1, 0, [8], site="pipe.py:13 step")
        for _ in range(sent):
            script.recv(0, 1, [8], site="pipe.py:16 step")
            script.send(1, 0, [8], site="pipe.py:18 step")
        script.step()
    return script


def told(script: Script) -> list[Finding]:
    return list(examine(script.source("pipe.py", SCHEDULE).live(), CHECKS, live=True).findings)


def test_of_two_stages_both_are_named_with_what_decides_how_often_the_one_sends() -> None:
    (finding,) = told(rounds((4, 4), (4, 4), (4, 4), (3, 4)))

    assert (finding.code, finding.ranks, finding.confidence) == ("DD113", (0, 1), LIKELY)
    assert finding.undecided
    assert finding.title.startswith("rank 0 sends one message fewer than rank 1 receives")
    assert (finding.place.line, finding.places[0].site.line) == (11, 11)
    shown = {place.site.line: place.role for place in finding.places}
    assert shown[9] == "decides: `for ... in sizes`"
    assert shown[8] == "which depends on `self.sizes(batch)`"
    assert {5, 6} & shown.keys()


def test_a_stage_that_receives_fewer_messages_sends_back_while_the_other_one_still_sends() -> None:
    """No ring of sends that others would send in another order: `batch // micro` here, what a split leaves over there."""
    script = rounds((4, 4), (4, 4), (4, 4))
    for number in range(3):
        script.send(0, 1, [8], site="pipe.py:11 step")
        if number < 2:
            script.recv(1, 0, [8], site="pipe.py:13 step")
    script.send(1, 0, [8], site="pipe.py:18 step")

    (finding,) = examine(script.source("pipe.py", SCHEDULE).live(rendezvous=True), CHECKS, live=True).findings

    assert (finding.code, finding.ranks, finding.confidence) == ("DD113", (0, 1), LIKELY)
    assert finding.undecided
    assert finding.title.startswith("rank 1 receives one message fewer than rank 0 sends: send #15 to rank 1 waits")
    assert finding.place.line == 13
    assert {6, 8, 9} & {place.site.line for place in finding.places}


def served(*, answered: int, turns: int) -> Script:
    """A server that receives from anybody and answers, so often; a client that asks so often."""
    script = recording(ranks=2)
    for turn in range(turns):
        script.send(1, 0, [8], site="server.py:40 push").recv(1, 0, [8], site="server.py:41 push")
        if turn < answered:
            script.recv(0, -1, [8], site="server.py:30 serve").send(0, 1, [8], site="server.py:32 serve")
    return script


def test_a_server_that_stops_receiving_is_told_with_the_client_that_still_sends() -> None:
    script = served(answered=14, turns=15).collective("barrier", site="train.py:58 main")

    (finding,) = examine(script.live(rendezvous=True), CHECKS, live=True).findings

    assert (finding.code, finding.ranks, finding.confidence) == ("DD113", (0, 1), LIKELY)
    assert finding.undecided
    assert finding.title.startswith("rank 0 receives one message fewer than rank 1 sends")
    assert (finding.place.path, finding.place.line) == ("/job/server.py", 30)


def test_a_ring_of_receives_in_the_first_round_is_still_one() -> None:
    script = recording(ranks=2)
    for rank in range(2):
        script.recv(rank, 1 - rank, [8], site="pipe.py:13 step").send(rank, 1 - rank, [8], site="pipe.py:11 step")

    assert [one.code for one in told(script)] == ["DD114"]


def test_rounds_that_come_out_even_are_silent_whatever_their_number() -> None:
    assert told(rounds((4, 4), (4, 4), (3, 3), (4, 4))) == []


def pipeline_of_three(micros: tuple[int, ...]) -> Script:
    """One forward, one backward; the inner stage has a steady phase as soon as there are two micro-batches."""
    script = recording(ranks=3)
    for many in micros:
        for _ in range(many):
            script.send(0, 1, [8], site="pipe.py:11 step")
        if many == 1:
            script.recv(1, 0, [8], site="pipe.py:13 step").send(1, 2, [8], site="pipe.py:11 step")
            script.recv(2, 1, [8], site="pipe.py:13 step").send(2, 1, [8], site="pipe.py:18 step")
            script.recv(1, 2, [8], site="pipe.py:16 step").send(1, 0, [8], site="pipe.py:18 step")
            script.recv(0, 1, [8], site="pipe.py:16 step").step()
    script.recv(1, 0, [8], site="pipe.py:13 step").send(1, 2, [8], site="pipe.py:11 step")
    script.recv(2, 1, [8], site="pipe.py:13 step").recv(1, 0, [8], site="pipe.py:13 step")
    script.send(1, 2, [8], site="pipe.py:11 step").send(2, 1, [8], site="pipe.py:18 step")
    return script.recv(0, 1, [8], site="pipe.py:16 step")


def test_a_schedule_that_both_ends_of_a_message_change_is_no_straying() -> None:
    (finding,) = told(pipeline_of_three((1, 1, 1, 1, 2)))

    assert (finding.code, finding.ranks) == ("DD114", (1, 2))


def three_stages(*counts: tuple[int, int, int]) -> Script:
    """In each round the number of micro-batches by which each stage goes: all forward, then all back."""
    script = recording(ranks=3)
    for first, middle, last in counts:
        for number in range(max(first, middle, last)):
            if number < first:
                script.send(0, 1, [8], site="pipe.py:11 step")
            if number < middle:
                script.recv(1, 0, [8], site="pipe.py:13 step")
            if number < min(first, middle):
                script.send(1, 2, [8], site="pipe.py:11 step")
            if number < last:
                script.recv(2, 1, [8], site="pipe.py:13 step")
        for _ in range(last):
            script.send(2, 1, [8], site="pipe.py:18 step")
        for _ in range(middle):
            script.recv(1, 2, [8], site="pipe.py:16 step").send(1, 0, [8], site="pipe.py:18 step")
        for _ in range(first):
            script.recv(0, 1, [8], site="pipe.py:16 step")
        script.step()
    return script


def test_a_stage_that_goes_by_more_micro_batches_than_both_its_neighbours_is_the_odd_one() -> None:
    (finding,) = told(three_stages((4, 4, 4), (4, 4, 4), (4, 4, 4), (2, 4, 2)).recv(2, 1, [8], site="pipe.py:13 step"))

    assert (finding.code, finding.ranks, finding.confidence) == ("DD113", (1,), LIKELY)
    assert finding.title.startswith("rank 1 receives one message more than rank 0 sends")
    assert finding.place.line == 13


def test_a_first_stage_that_alone_goes_by_fewer_is_the_odd_one() -> None:
    (finding,) = told(three_stages((4, 4, 4), (4, 4, 4), (4, 4, 4), (2, 4, 4)))

    assert (finding.code, finding.ranks) == ("DD113", (0,))


def test_a_first_stage_that_ends_its_evaluation_early_is_the_odd_one_of_all_that_go_on_receiving() -> None:
    """The last stage has left the routine of the training for that of the evaluation as well, and still waits in it."""
    script = three_stages(*[(1, 1, 1)] * 12)
    for number in range(7):
        if number < 6:
            script.send(0, 1, [8], site="pipe.py:45 evaluate")
        script.recv(1, 0, [8], site="pipe.py:20 evaluate").send(1, 2, [8], site="pipe.py:45 evaluate")
        script.recv(2, 1, [8], site="pipe.py:20 evaluate")

    (finding,) = told(script.collective("broadcast", [1], root=2, site="pipe.py:61 evaluate"))

    assert (finding.code, finding.ranks) == ("DD113", (0,))
    assert finding.title.startswith("rank 0 sends one message too few")


def cut_into(before: int, sent: int) -> Script:
    """Two messages of one size in each round; in the last one three of another, of which the receiver knows nothing."""
    script = recording(ranks=2)
    for size, sends in ((before, 2), (before, 2), (before, 2), (sent, 3)):
        for number in range(sends):
            script.send(0, 1, [size], site="pipe.py:21 step")
            if number < 2:
                script.recv(1, 0, [16], site="pipe.py:41 step")
        for _ in range(2):
            script.send(1, 0, [16], site="pipe.py:48 step").recv(0, 1, [16], site="pipe.py:26 step")
    return script


def test_a_ring_behind_a_message_of_another_size_than_its_receive_comes_from_that() -> None:
    (finding,) = examine(cut_into(16, 8).live(rendezvous=True), CHECKS, live=True).findings

    assert (finding.code, finding.ranks, finding.confidence) == ("DD113", (1, 0), LIKELY)
    assert finding.title.startswith("recv #7 from rank 0 expects 64 bytes float32, but the send has 32 bytes")


def test_a_ring_of_those_that_always_receive_into_more_room_is_one() -> None:
    (finding,) = examine(cut_into(8, 8).live(rendezvous=True), CHECKS, live=True).findings

    assert "expects" not in finding.title


def test_a_server_that_owes_an_answer_is_told_with_its_client_although_another_one_has_finished() -> None:
    script = recording(ranks=3)
    for client in (1, 2):
        for _ in range(12):
            script.send(client, 0, [8], site="rpc.py:40 call").recv(0, ANYBODY, [8], site="rpc.py:30 run")
            script.send(0, client, [8], site="rpc.py:32 run").recv(client, 0, [8], site="rpc.py:41 call")
        script.collective("all_reduce", [8], site="train.py:70 main")
    script.send(2, 0, [8], site="rpc.py:40 call").recv(0, ANYBODY, [8], site="rpc.py:30 run")
    script.recv(0, ANYBODY, [8], site="rpc.py:30 run").recv(2, 0, [8], site="rpc.py:41 call")
    script.collective("barrier", site="train.py:79 main", only=[1])

    (finding,) = examine(script.live(rendezvous=True), CHECKS, live=True).findings

    assert (finding.code, finding.ranks, finding.confidence) == ("DD113", (0, 2), LIKELY), finding.title
    assert finding.title.startswith("rank 0 sends one message fewer than rank 2 receives: recv #13 from rank 0")


def test_who_alone_takes_another_turn_of_exchanges_is_the_odd_one() -> None:
    """Halos of a solver whose number of steps each rank works out: the others have all come to the collective behind it."""
    script = recording(ranks=4)
    for turn in range(11):
        for left, right in ((0, 1), (2, 3), (1, 2)):
            script.send(left, right, [8], site="halo.py:20 swap").recv(right, left, [8], site="halo.py:31 swap")
            script.send(right, left, [8], site="halo.py:32 swap").recv(left, right, [8], site="halo.py:21 swap")
        if turn % 3 == 2:
            script.collective("all_reduce", [64], site="train.py:48 main").step()
    script.send(2, 3, [8], site="halo.py:20 swap")
    script.collective("all_reduce", [64], site="train.py:48 main", only=[0, 1, 3])

    (finding,) = examine(script.live(rendezvous=True), CHECKS, live=True).findings

    assert (finding.ranks, finding.confidence) == ((2,), LIKELY), finding.title


def test_others_who_come_to_a_collective_by_routine_say_nothing_against_who_waits_for_a_message() -> None:
    """One rank left out a send; only whoever waits for it is held up."""
    script = recording(ranks=4)
    for turn in range(6):
        if turn < 5:
            script.send(0, 1, [8], site="train.py:20 main")
        script.recv(1, 0, [8], site="train.py:21 main")
        script.collective("all_reduce", [64], site="train.py:30 main").step()

    (finding,) = examine(script.live(), CHECKS, live=True).findings

    assert 0 in finding.ranks, finding.title
