"""`distdoctor run` on unmodified scripts: arguments, outputs, exit codes, and who is named when a rank fails."""

from __future__ import annotations

import json
import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from launching import FINISH, Command, Finished

pytestmark = pytest.mark.job
Run = Callable[..., Finished]
Script = Callable[..., Path]
SLEEPS = "open(f'pid-{rank}', 'w').write(str(os.getpid()))\ntime.sleep(100)"


def test_a_healthy_script_ends_with_one_quiet_line_and_leaves_a_recording(
    distdoctor: Run, script: Script, tmp_path: Path
) -> None:
    script("print(f'hello from {rank}\\n', end='')\nif rank == 0: print(sys.argv[1:])\n" + FINISH)
    its_own = ["--nproc", "7", "--no-such-option", "--strategy", "x", "--", "--off", "-m"]

    done = distdoctor("run", "--nproc_per_node=2", "train.py", *its_own)

    assert done.code == 0, done.err
    assert sorted(done.out.splitlines()) == sorted([str(its_own), "hello from 0", "hello from 1"])
    assert "2 ranks" in done.err
    assert done.traces == ["rank-00000.a0.trace", "rank-00001.a0.trace"]
    assert done.job["world_size"] == 2
    assert done.job["exit_code"] == 0
    assert not done.job["running"]
    assert {rank: end["exit_code"] for rank, end in done.job["ends"].items()} == {"0": 0, "1": 0}
    assert done.folder is not None
    assert stat.S_IMODE(done.folder.stat().st_mode) == 0o700
    assert (tmp_path / ".distdoctor" / ".gitignore").read_text() == "*\n"
    assert done.folder.name.endswith("-train")


def test_a_module_runs_as_with_python_dash_m(distdoctor: Run, script: Script, tmp_path: Path) -> None:
    script("if rank == 0: print(__name__, __package__, sys.argv[1:])\n" + FINISH, "lab/train.py")

    done = distdoctor("run", "--nproc", 2, "-m", "lab.train", "--lr", "1")

    assert done.code == 0, done.err
    assert done.out == "__main__ lab ['--lr', '1']\n"


def test_pet_variables_mean_what_they_mean_for_torchrun_and_without_torchs_autoload_ranks_are_recorded_too(
    distdoctor: Run, script: Script
) -> None:
    script("if rank == 0: print(world)\n" + FINISH)

    done = distdoctor("run", "train.py", env={"PET_NPROC_PER_NODE": "2", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})

    assert done.out == "2\n"
    assert done.traces == ["rank-00000.a0.trace", "rank-00001.a0.trace"]


def test_an_exception_on_one_rank_names_that_rank_and_counts_the_others(distdoctor: Run, script: Script) -> None:
    script("if rank == 1: raise ValueError('the batch is empty')\n" + FINISH)

    done = distdoctor("run", "--nproc", 2, "--output-format", "json", "train.py")

    assert done.code == 1
    assert done.document["job"]["exit_code"] == 1
    cause = done.document["job"]["root_cause"]  # gloo may abort a rank on its way out: the exception stays the cause
    assert (cause["rank"], cause["signal"]) == (1, None)
    assert cause["exit_code"] in (1, None)
    assert "ValueError: the batch is empty" in done.err
    assert "Root Cause (first observed failure)" not in done.err
    assert "Sending process" not in done.err


def test_the_text_report_says_how_many_ranks_ended_because_of_it(distdoctor: Run, script: Script) -> None:
    script("if rank == 1: raise ValueError('the batch is empty')\ntime.sleep(60)")

    done = distdoctor("run", "--nproc", 3, "train.py")

    assert done.code == 1
    assert "rank 1" in done.out
    assert "2 ranks ended because of it (ranks 0,2)" in done.out


def test_sys_exit_keeps_its_code_in_the_json(distdoctor: Run, script: Script) -> None:
    # Gloo aborts in 1 of 10 exits with a living group, with and without us: "terminate called without an active exception".
    script("dist.destroy_process_group()\nif rank == 1: sys.exit(3)\ntime.sleep(60)")

    done = distdoctor("run", "--nproc", 2, "--output-format", "json", "train.py")

    assert done.code == 1
    assert done.document["job"]["root_cause"] == {"rank": 1, "exit_code": 3, "signal": None}


def test_a_killed_rank_keeps_its_signal_in_the_json(distdoctor: Run, script: Script) -> None:
    script("if rank == 1: os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(60)")

    done = distdoctor("run", "--nproc", 2, "--output-format", "json", "train.py")

    assert done.code == 1
    assert done.document["job"]["root_cause"] == {"rank": 1, "exit_code": None, "signal": signal.SIGKILL}
    assert done.job["ends"]["0"]["ended_by_launcher"]
    assert not done.job["ends"]["1"]["ended_by_launcher"]


def test_a_rank_that_leaves_with_exit_code_0_is_seen_to_have_left_first(distdoctor: Run, script: Script) -> None:
    script("dist.destroy_process_group()\nif rank == 1: sys.exit(0)\nprint('alone'); time.sleep(2); sys.exit(5)")

    done = distdoctor("run", "--nproc", 2, "--output-format", "json", "train.py")

    ends = done.job["ends"]
    assert done.code == 1
    assert ends["1"]["exit_code"] == 0
    assert ends["0"]["exit_code"] == 5
    assert ends["1"]["at_ns"] < ends["0"]["at_ns"]


def test_json_on_stdout_is_one_document_and_the_jobs_own_output_goes_to_stderr(distdoctor: Run, script: Script) -> None:
    script("print('noise')\n" + FINISH)

    done = distdoctor("run", "--nproc", 2, "--output-format", "json", "train.py")

    assert done.code == 0, done.err
    assert done.document["schema_version"] == 2
    assert done.document["job"]["argv"] == ["--nproc", "2", "--output-format", "json", "train.py"]
    assert done.document["findings"] == []
    assert done.err.count("noise") == 2


def test_a_report_in_a_file_leaves_stdout_to_the_job(distdoctor: Run, script: Script, tmp_path: Path) -> None:
    script("print('noise')\n" + FINISH)

    done = distdoctor("run", "--nproc", 2, "--output-format", "json", "-o", "report.json", "train.py")

    assert done.out.replace("\n", "") == "noisenoise"  # two ranks may write at once
    assert json.loads((tmp_path / "report.json").read_text())["job"]["world_size"] == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_job_ends_its_ranks_and_keeps_its_recording(
    start: Callable[..., Command], script: Script, tmp_path: Path, number: int
) -> None:
    script(SLEEPS)
    command = start("run", "--nproc", 2, "--on-hang", "wait", "train.py")
    command.wait_for(lambda: all((tmp_path / f"pid-{rank}").exists() for rank in (0, 1)))

    command.process.send_signal(number)
    done = command.finish()

    assert done.code == 1
    assert ("interrupted (SIGINT)" if number == signal.SIGINT else "ended from outside by SIGTERM") in done.err
    assert all(end["ended_by_launcher"] for end in done.job["ends"].values())
    assert_ended_whole(done, tmp_path)


def test_ctrl_c_again_ends_the_report_at_most(start: Callable[..., Command], script: Script, tmp_path: Path) -> None:
    """It comes when the ranks have gone: the report is made then, or is there already."""
    script(SLEEPS)
    command = start("run", "--nproc", 2, "--on-hang", "wait", "train.py")
    command.wait_for(lambda: all((tmp_path / f"pid-{rank}").exists() for rank in (0, 1)))

    command.process.send_signal(signal.SIGINT)
    command.wait_for(lambda: not psutil.pid_exists(int((tmp_path / "pid-0").read_text())))
    command.process.send_signal(signal.SIGINT)
    done = command.finish()

    assert done.code in (1, 130)
    assert "the job was interrupted (SIGINT)" in done.err or "interrupted" in done.err.splitlines()[-1]
    assert_ended_whole(done, tmp_path)


def assert_ended_whole(done: Finished, folder: Path) -> None:
    """No traceback of the launcher, a trace of each rank, and no rank left."""
    assert "Traceback" not in done.err.replace("KeyboardInterrupt", "") or "distdoctor/launch" not in done.err
    assert done.traces == ["rank-00000.a0.trace", "rank-00001.a0.trace"]
    for rank in (0, 1):
        with pytest.raises(ProcessLookupError):
            os.kill(int((folder / f"pid-{rank}").read_text()), 0)


def test_a_restarted_job_is_judged_by_its_last_start(distdoctor: Run, script: Script) -> None:
    script("if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0': sys.exit(3)\nsys.exit(4)")

    done = distdoctor("run", "--max-restarts", 1, "--output-format", "json", "train.py")

    assert done.document["job"]["root_cause"] == {"rank": 0, "exit_code": 4, "signal": None}
    assert done.traces == ["rank-00000.a0.trace", "rank-00000.a1.trace"]


def test_off_is_the_plain_launcher(distdoctor: Run, script: Script) -> None:
    script("print(os.environ.get('DISTDOCTOR_PROBE'))\n" + FINISH)

    done = distdoctor("run", "--off", "--nproc", 1, "train.py")

    assert done.code == 0, done.err
    assert done.out == "None\n"
    assert done.folder is None


def test_a_run_folder_of_ones_own_is_never_shared_with_another_run(
    distdoctor: Run, script: Script, tmp_path: Path
) -> None:
    script(FINISH)

    first = distdoctor("run", "--run-dir", "mine", "train.py")
    second = distdoctor("run", "--run-dir", "mine", "train.py")

    assert first.code == 0, first.err
    assert (tmp_path / "mine" / "rank-00000.a0.trace").exists()
    assert second.code == 2
    assert "holds the recording of another run" in second.err


def test_a_stream_that_is_turned_off_is_not_recorded_and_its_checks_say_so(distdoctor: Run, script: Script) -> None:
    script("loader = torch.utils.data.DataLoader(torch.arange(8.0), batch_size=2)\nfor _ in loader: pass\n" + FINISH)

    done = distdoctor("run", "--streams", "collectives,progress", "--output-format", "json", "train.py")
    later = distdoctor("examine", "--output-format", "json")

    reasons = {one["code"]: one["reason"] for one in done.document["not_examined"]}
    assert reasons["DD301"].startswith("not recorded: ")
    assert "samples" in reasons["DD301"]
    assert later.document["not_examined"] == done.document["not_examined"]
    assert done.traces == ["rank-00000.a0.trace"]
