"""Promises of `xagg.torch` outside of DistributedDataParallel."""

import gc
import signal
import threading
import time

import pytest
import torch

import xagg
import xagg.torch
from conftest import findings


@pytest.fixture
def group(cluster):
    """The only rank of a job."""
    job = cluster.job(1)
    cluster.aggregator(job)
    with xagg.torch.connect(job, 0) as group:
        yield group


def test_sums_are_exact_on_every_rank(cluster):
    job = cluster.job(4)
    cluster.aggregator(job)
    assert cluster.ranks("sums", job, 4, 4) == [[{"operations": 7}]] * 4


def test_a_mean_divides_by_the_sum_of_the_weights(cluster):
    job = cluster.job(3)
    cluster.aggregator(job)
    # (6 + 12 + 18) / (1 + 2 + 3)
    assert cluster.ranks("means", job, 3) == [[{"mean": [6.0] * 10}]] * 3


@pytest.mark.parametrize(
    ("tensor", "error", "words"),
    [
        (torch.ones(10, dtype=torch.float64), TypeError, ["torch.float32", "torch.float64", "tensor.float()"]),
        (torch.ones(10, dtype=torch.int32), TypeError, ["torch.float32", "torch.int32"]),
        (torch.ones(10, dtype=torch.bfloat16), TypeError, ["torch.float32", "torch.bfloat16"]),
        (torch.ones(10, 10).t()[:, :5], ValueError, ["contiguous"]),
        (torch.ones(0), ValueError, ["empty", "every rank"]),
        (torch.ones(4, 4).to_sparse(), TypeError, ["dense", "to_dense()"]),
        (torch.ones(10, device="meta"), TypeError, ["CPU", "meta", "tensor.cpu()"]),
        ([1.0, 2.0], TypeError, ["torch.Tensor", "list"]),
    ],
)
def test_an_unsupported_tensor_is_refused_with_what_to_do(group, tensor, error, words):
    with pytest.raises(error) as caught:
        group.all_reduce(tensor)
    for word in words:
        assert word in str(caught.value)
    # The group is as good as before.
    assert group.all_reduce(torch.ones(3)).wait().tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(("arguments", "word"), [({"op": "max"}, "max"), ({"weight": 0}, "65535"), ({"weight": -1}, "-1")])
def test_an_unsupported_operation_is_refused(group, arguments, word):
    with pytest.raises(ValueError, match=word):
        group.all_reduce(torch.ones(3), **arguments)


def test_a_closed_group_says_so(group):
    group.close()
    group.close()
    with pytest.raises(xagg.XaggError, match="closed"):
        group.all_reduce(torch.ones(3))
    with pytest.raises(xagg.XaggError, match="closed"):
        group.stats()
    with pytest.raises(xagg.XaggError, match="closed"):
        group.waiting_for()


def test_a_group_that_is_garbage_leaves_its_job(cluster):
    job = cluster.job(1)
    cluster.aggregator(job)
    group = xagg.torch.connect(job, 0)
    assert any(thread.name == "xagg-completions" for thread in threading.enumerate())
    del group
    gc.collect()
    assert not any(thread.name == "xagg-completions" for thread in threading.enumerate())


def test_memory_lives_as_long_as_the_operation(group):
    futures = [group.all_reduce(torch.full((50_000,), float(number))) for number in range(20)]
    gc.collect()
    for number, future in enumerate(futures):
        assert torch.equal(future.wait(), torch.full((50_000,), float(number)))


def test_a_future_that_its_owner_sets_does_not_stop_the_others(cluster):
    job = cluster.job(2, timeout=1)
    cluster.aggregator(job)
    # Rank 1 never comes, so both operations end together, with an error.
    with xagg.torch.connect(job, 0) as group:
        spoilt = group.all_reduce(torch.ones(3))
        spoilt.set_result(torch.zeros(1))
        other = group.all_reduce(torch.ones(3))
        with pytest.raises(xagg.XaggError, match="rank 1 is missing"):
            other.wait()


def test_a_rank_says_whom_it_waits_for_and_how_long(cluster):
    job = cluster.job(2)
    cluster.aggregator(job)
    [[first], [second]] = cluster.ranks("late", job, 2)
    assert first["named"] == [1] and list(first["waited_for"]) == ["1"], first
    assert 0.5 < first["waited_for"]["1"] < 10
    assert (first["waiting_for"], second["waiting_for"], second["waited_for"]) == ([], [], {})


def test_different_lengths_are_an_error_on_both_ranks(cluster):
    job = cluster.job(2)
    cluster.aggregator(job)
    for rank, found in enumerate(cluster.ranks("mismatch", job, 2)):
        [error] = [finding["error"] for finding in found]
        assert f"rank {rank}" in error and "different operations" in error
        assert error.count("signature ") >= 2, error


def test_a_rank_that_never_comes_is_named(cluster):
    job = cluster.job(2, timeout=2)
    cluster.aggregator(job)
    _waiting, first, second = findings(cluster.rank("alone", job, 0))
    for word in ["rank 0", "operation 0", "rank 1 is missing"]:
        assert word in first["error"]
    assert second == first, "a job that has failed stays failed"


def test_a_killed_aggregator_is_an_error_in_time(cluster):
    job = cluster.job(2, timeout=3)
    aggregator = cluster.aggregator(job)
    rank = cluster.rank("alone", job, 0)
    assert "waiting" in rank.stdout.readline()
    aggregator.kill()
    begin = time.monotonic()
    first, _second = findings(rank)
    assert time.monotonic() - begin < 3 + 4
    for word in ["rank 0", "operation 0", "phase"]:
        assert word in first["error"]


def test_no_aggregator_is_an_error_in_time(cluster):
    job = cluster.job(2, timeout=1)
    begin = time.monotonic()
    with pytest.raises(xagg.XaggError, match="xagg aggregator"):
        xagg.torch.connect(job, 0)
    assert time.monotonic() - begin < 5


def test_a_wrong_job_file_or_rank_is_an_error(cluster, tmp_path):
    with pytest.raises(xagg.XaggError, match="nosuch.toml"):
        xagg.torch.connect(tmp_path / "nosuch.toml", 0)
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(cluster.job(2).read_text() + "\ncolour = 3\n")
    with pytest.raises(xagg.XaggError, match="colour"):
        xagg.torch.connect(wrong, 0)
    with pytest.raises(xagg.XaggError, match="ranks are 0 to 1"):
        xagg.torch.connect(cluster.job(2), 2)
    with pytest.raises(ValueError, match="-1"):
        xagg.torch.connect(cluster.job(2), -1)


def test_ctrl_c_ends_the_wait_for_an_aggregator(cluster):
    rank = cluster.rank("joining", cluster.job(1, timeout=60), 0)
    assert "joining" in rank.stdout.readline()
    time.sleep(0.5)
    rank.send_signal(signal.SIGINT)
    begin = time.monotonic()
    assert findings(rank) == [{"interrupted": True}]
    assert time.monotonic() - begin < 5


def test_an_interpreter_ends_cleanly_in_the_middle_of_an_operation(cluster):
    job = cluster.job(2, timeout=60)
    cluster.aggregator(job)
    [found] = findings(cluster.rank("leaving", job, 0), timeout=20)
    assert not found["done"]


def test_a_forked_child_is_told_and_does_no_harm(cluster):
    job = cluster.job(1)
    cluster.aggregator(job)
    of_child, of_parent = findings(cluster.rank("forking", job, 0))
    assert "fork" in of_child["error"]
    assert of_parent == {"child": 0, "sum": [1.0] * 10}
