"""What works in pytest works in ranks, or is refused in one sentence. One inner session holds all idioms."""

from __future__ import annotations

from pathlib import Path

import pytest
from inner import Session, run_suite

pytestmark = pytest.mark.job

SUITE = """
import logging
import os
import subprocess
import threading
import unittest
import warnings

import pytest
import torch
import torch.distributed as dist

from .words import GREETING

two = pytest.mark.distdoctor(nproc=2, timeout=120)


@pytest.fixture(scope="module")
def module_lock():
    made.append(os.getpid())
    lock = threading.Lock()  # cannot be pickled
    yield lock
    made.append("down")

made = []


@pytest.fixture(autouse=True)
def everywhere(request):
    request.node.was_here = True


@pytest.fixture
def wrapped(dist):
    made.append(f"model of {dist.get_rank()}")
    yield torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
    print(f"took down {dist.get_rank()}")


@two
def test_passed_sum_in_a_package():
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == 2 and GREETING == "hello"


@two
@pytest.mark.parametrize("size", [3, 4])
def test_passed_parameters_and_fixtures(size, tmp_path, monkeypatch, capsys, caplog, module_lock, request):
    monkeypatch.setenv("SOMETHING", str(size))
    assert os.environ["SOMETHING"] == str(size)
    print("seen by capsys")
    assert capsys.readouterr().out == "seen by capsys\\n"
    logging.getLogger("mine").warning("seen by caplog")
    assert "seen by caplog" in caplog.text
    with module_lock:
        (tmp_path / str(dist.get_rank())).touch()
        dist.barrier()
        assert len(list(tmp_path.iterdir())) == 2
    assert made[0] == os.getppid() or len(made) == 1
    assert request.node.was_here


@two
def test_passed_group_fixture(wrapped, dist):
    wrapped(torch.ones(1, 2)).sum().backward()
    assert f"model of {dist.get_rank()}" in made


class TestPassed:
    @pytest.fixture(scope="class", autouse=True)
    def prepared(self, request):
        request.cls.kept = object()

    def setup_method(self):
        self.number = 3

    @pytest.mark.distdoctor(ranks=3)
    def test_passed_self(self, nproc):
        assert self.number == nproc == dist.get_world_size() and self.kept


@pytest.mark.distdoctor(nproc=[1, 2])
def test_passed_each_count(nproc):
    assert dist.get_world_size() == nproc


@pytest.mark.distdoctor(nproc=2, join=False)
def test_passed_joins_by_itself():
    assert not dist.is_initialized()
    dist.init_process_group("gloo")
    dist.barrier()
    dist.destroy_process_group()


@two
def test_passed_raises_and_warns(recwarn):
    with pytest.raises(ValueError, match="no"):
        raise ValueError("no")
    with pytest.warns(UserWarning):
        warnings.warn("expected")
    warnings.warn("heard by the fixture")
    assert str(recwarn.pop().message) == "heard by the fixture"


@two
def test_passed_properties(record_property):
    record_property("world", dist.get_world_size())
    warnings.warn("of all ranks")
    thread = threading.Thread(target=lambda: 1 / 0, name="unlucky")
    thread.start()
    thread.join()


def test_passed_backward_here_first():
    torch.ones(300, 300, requires_grad=True).matmul(torch.ones(300, 300)).sum().backward()


@two
def test_passed_backward_there_afterwards():
    torch.ones(300, 300, requires_grad=True).matmul(torch.ones(300, 300)).sum().backward()


@two
def test_skipped_inside():
    pytest.skip("needs CUDA")


@two
def test_failed_skipped_by_one():
    if dist.get_rank() == 1:
        pytest.skip("only here")


@two
@pytest.mark.skipif(True, reason="never")
async def test_skipped_mark():
    pass


@two
def test_xfailed_inside():
    pytest.xfail("known")


@two
@pytest.mark.xfail(raises=KeyError, strict=True)
def test_xfailed_mark():
    if dist.get_rank() == 1:
        raise KeyError("x")
    dist.barrier()


@two
@pytest.mark.xfail(strict=True)
def test_failed_xpass():
    pass


@two
def test_failed_assertion():
    print("printed by", dist.get_rank())
    logging.getLogger("mine").warning("logged by %d", dist.get_rank())
    numbers = [dist.get_rank(), 3]
    assert numbers == [1, 2, 0]


@two
def test_failed_fail():
    pytest.fail("as told", pytrace=False)


@two
def test_failed_two_ways():
    if dist.get_rank() == 1:
        raise KeyError("first")
    import time
    time.sleep(0.4)
    raise ValueError("second")


@two
def test_failed_without_a_word():
    if dist.get_rank() == 1:
        os._exit(7)
    dist.barrier()


@two
async def test_failed_async():
    pass


@pytest.mark.distdoctor(timout=5)
def test_failed_unknown_argument():
    pass


@pytest.mark.distdoctor(allow=["DD999"])
def test_failed_unknown_check():
    pass


@pytest.mark.distdoctor(nproc="2")
def test_failed_no_number():
    pass


@two
def test_failed_capfd(capfd):
    pass


@two
def test_failed_unknown_fault(inject_fault):
    inject_fault("explode")


@pytest.fixture
def too_early():
    dist.barrier()


@two
def test_failed_fixture_without_group(too_early):
    pass


@pytest.fixture
def asks_later(request):
    return request.getfixturevalue("dist")


@two
def test_failed_group_asked_for_later(asks_later):
    pass


@two
def test_passed_group_asked_for_in_rank(request):
    assert request.getfixturevalue("dist").get_world_size() == 2


def test_failed_group_without_ranks(dist):
    pass


@two
class Old(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.made_in = os.getpid()

    def setUp(self):
        self.total = torch.ones(1)
        self.addCleanup(print, "cleaned up by", dist.get_rank())

    def tearDown(self):
        dist.barrier()

    def test_passed_unittest(self):
        dist.all_reduce(self.total)
        self.assertEqual((self.total.item(), self.made_in == os.getpid()), (2, False))

    def test_failed_unittest(self):
        self.assertEqual(dist.get_rank(), 0)

    def test_skipped_unittest(self):
        self.skipTest("not today")

    @unittest.expectedFailure
    def test_xfailed_unittest(self):
        self.fail("known")

    @unittest.expectedFailure
    def test_failed_unexpected_unittest(self):
        dist.all_reduce(self.total)

    def test_failed_subtest_of_unittest(self):
        for number in range(2):
            with self.subTest(number=number):
                self.assertNotEqual(number, dist.get_rank())

    async def test_failed_async_unittest(self):
        pass

    @pytest.mark.distdoctor(nproc=[1, 2])
    def test_failed_unittest_in_several(self):
        pass


class OldAsync(unittest.IsolatedAsyncioTestCase):
    @two
    async def test_passed_async_unittest(self):
        dist.barrier()


@two
def test_failed_subtest(subtests):
    for number in range(3):
        with subtests.test("part", number=number):
            print("part", number, "of rank", dist.get_rank())
            assert number != 1 or dist.get_rank() == 0


@two
def test_passed_leaves_a_process_behind():
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    with open(os.environ["LEFT_BEHIND"], "a") as file:
        file.write(f"{child.pid}\\n")


@pytest.mark.filterwarnings("error::RuntimeWarning")
@two
def test_failed_warning_as_error():
    warnings.warn("as error", RuntimeWarning)
"""


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    folder = tmp_path_factory.mktemp("suite")
    files = {
        "package/__init__.py": "",
        "package/words.py": "GREETING = 'hello'\n",
        "package/test_idioms.py": SUITE,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEFT_BEHIND", str(folder / "left"))
        return run_suite(folder, files)


def test_every_idiom_ends_as_its_name_says(session: Session) -> None:
    others = {n: o for n, o in session.outcomes().items() if not n.startswith(f"test_{o}")}

    assert not others, session.output
    assert len(session.tests) == 44, sorted(session.tests)


def test_assertions_are_explained_for_every_rank(session: Session) -> None:
    failed = session.tests["test_failed_assertion"]

    assert "assert [0, 3] == [1, 2, 0]" in failed.text
    assert "assert [1, 3] == [1, 2, 0]" in failed.text
    assert "At index 1 diff: 3 != 2" in failed.text
    assert ["Captured stdout (rank 1) call", "printed by 1\n"] in failed.sections
    assert any(name == "Captured log (rank 0) call" and "logged by 0" in text for name, text in failed.sections)
    assert "in_rank.py" not in failed.text


def test_every_error_is_shown_the_first_one_first(session: Session) -> None:
    text = session.tests["test_failed_two_ways"].text

    assert text.index("rank 1 (the first to fail)") < text.index("KeyError: 'first'") < text.index("ValueError: second")


def test_a_diagnosis_that_only_repeats_the_tracebacks_is_left_out(session: Session) -> None:
    assert "Captured diagnosis call" not in dict(session.tests["test_failed_two_ways"].sections)


def test_an_unexpected_success_accuses_no_line(session: Session) -> None:
    failed = session.tests["test_failed_unexpected_unittest"]

    assert "Unexpected success" in failed.text
    assert "Captured diagnosis call" not in dict(failed.sections)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "test_failed_async",
            "test_failed_async is an async function, and ranks run no event loop. Let a plain function",
        ),
        ("test_failed_unknown_argument", "@pytest.mark.distdoctor has no argument timout. Did you mean timeout?"),
        ("test_failed_no_number", "@pytest.mark.distdoctor(nproc='2') cannot be. It takes a number of ranks"),
        ("test_failed_capfd", "the fixture capfd reads file descriptors that all ranks share. Use capsys"),
        ("test_failed_fixture_without_group", "let it ask for the fixture `dist`"),
        ("test_failed_group_asked_for_later", "before they were started: name it, or `dist`, among the arguments"),
        ("test_failed_group_without_ranks", "the fixture dist needs @pytest.mark.distdoctor"),
        ("test_failed_async_unittest", "is an async function, and ranks run no event loop"),
        ("test_failed_unittest_in_several", "which pytest runs once and not for several numbers of ranks"),
        ("test_failed_unknown_check", "allow='DD999': there is no such check. `distdoctor rules` lists them."),
        ("test_failed_skipped_by_one", "rank 1 skipped the test, rank 0 did not\n_ _"),
        ("test_failed_unknown_fault", "There are raise, exit,"),
        ("test_failed_without_a_word", "DD110 rank 1: ended with exit code 7"),
        ("test_failed_xpass", "[XPASS(strict)]"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(session: Session, name: str, sentence: str) -> None:
    assert sentence in session.tests[name].text
    assert "Traceback" not in session.tests[name].text
    assert "During handling" not in session.tests[name].text
    assert "distdoctor/probe" not in session.tests[name].text


def test_a_subtest_that_fails_in_one_rank_fails_the_test_with_the_rank(session: Session) -> None:
    assert session.tests["test_failed_subtest"].text == "contains 1 failed subtest"
    assert "_ test_failed_subtest [part] (number='1') _" in session.output
    assert "__  rank 1 __" in session.output.replace("_ _", "__")
    assert "Captured stdout call (rank 1)" in session.output
    assert session.output.count("Old.test_failed_subtest_of_unittest (number=") == 2  # one in each rank


def test_warnings_and_properties_of_ranks_are_those_of_the_test(session: Session) -> None:
    assert session.output.count("UserWarning: of all ranks") == 1
    assert "heard by the fixture" not in session.output
    assert "PytestUnhandledThreadExceptionWarning: Exception in thread unlucky" in session.output
    assert session.tests["test_passed_properties"].properties == [["world", 2]]


def test_no_process_outlives_its_test(session: Session) -> None:
    pids = [int(line) for line in (_root(session) / "left").read_text().split()]

    assert len(pids) == 2
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def _root(session: Session) -> Path:
    return Path(session.output.partition("rootdir: ")[2].split("\n")[0])
