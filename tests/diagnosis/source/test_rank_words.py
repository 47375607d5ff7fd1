"""Names of ranks, as the verdict on a hang and lint both read them."""

from __future__ import annotations

import pytest

from distdoctor.diagnosis.source.rank_words import (
    names_global_rank,
    names_main,
    names_parallel_size,
    names_process,
    names_some_rank,
)


@pytest.mark.parametrize(
    "word", ["rank", "RANK", "my_rank", "global_rank", "get_rank", "rank_id", "ddp_rank", "process_index"]
)
def test_the_number_of_a_process_in_the_job(word: str) -> None:
    assert names_global_rank(word)
    assert names_process(word)
    assert names_some_rank(word)


@pytest.mark.parametrize("word", ["local_rank", "get_local_rank", "LOCAL_RANK", "local_process_index"])
def test_the_number_of_a_process_on_its_host_is_none_in_the_job(word: str) -> None:
    assert names_process(word)
    assert not names_global_rank(word)


@pytest.mark.parametrize("word", ["tp_rank", "dp_rank", "node_rank", "group_rank", "pipeline_rank"])
def test_a_number_in_some_group_differs_between_ranks_and_numbers_no_process(word: str) -> None:
    assert names_some_rank(word)
    assert not names_process(word)


@pytest.mark.parametrize(
    "word", ["", "matrix_rank", "lora_rank", "max_rank", "ranks", "ranking", "rank_loss", "frank", "tensor_rank"]
)
def test_other_ranks_are_none(word: str) -> None:
    assert not names_some_rank(word)
    assert not names_main(word)


MAINS = (
    "is_main is_main_process am_i_master is_local_main_process is_rank_zero is_rank_0 is_global_zero master primary "
    "is_world_process_zero is_first_rank _is_master_proc is_main_worker"
)


@pytest.mark.parametrize("word", MAINS.split())
def test_the_question_for_the_main_process(word: str) -> None:
    assert names_main(word)


@pytest.mark.parametrize(
    "word", ["", "main_loop", "master_port", "domain", "run_main", "remaster", "main_loss", "master_weights"]
)
def test_other_mains_ask_for_no_process(word: str) -> None:
    assert not names_main(word)


@pytest.mark.parametrize(
    "word", ["tp_size", "tensor_model_parallel_size", "tp_world_size", "mesh_size", "cp_degree", "sp_size", "ep_size"]
)
def test_the_number_of_ranks_that_share_a_layer(word: str) -> None:
    assert names_parallel_size(word)


@pytest.mark.parametrize(
    "word", ["", "step_size", "temp_size", "group_size", "size", "tp_rank", "amp_size_limit", "clip_size"]
)
def test_other_sizes_count_no_ranks(word: str) -> None:
    assert not names_parallel_size(word)
