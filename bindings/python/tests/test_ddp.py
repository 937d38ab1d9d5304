"""Promises of the communication hook for DistributedDataParallel."""

import pytest

from conftest import findings

WORKERS = 3


def train(cluster, backend, name):
    """What the ranks found; they have the same parameters in the end."""
    job = cluster.job(WORKERS)
    if backend == "xagg":
        cluster.aggregator(job)
    ranks = cluster.ranks("train", job, WORKERS, backend, WORKERS, cluster.folder / name)
    digests = {found["digest"] for [found] in ranks}
    assert len(digests) == 1, "the ranks' parameters differ"
    return [found["losses"] for [found] in ranks], digests.pop()


def test_training_learns_as_with_gloo_and_repeats_bit_for_bit(cluster):
    losses, digest = train(cluster, "xagg", "first")
    again, same_digest = train(cluster, "xagg", "second")
    assert (again, same_digest) == (losses, digest)
    of_gloo, _digest = train(cluster, "gloo", "third")
    for own, other in zip(losses, of_gloo):
        assert own == pytest.approx(other, rel=1e-3, abs=1e-5)
        assert own[-1] < own[0] / 2, "it learns"


def test_the_sum_overlaps_with_backward(cluster):
    job = cluster.job(2, timeout=30)
    cluster.aggregator(job)
    for [found] in cluster.ranks("overlap", job, 2, cluster.folder / "rendezvous"):
        assert len(found["buckets"]) > 1, "there is something to overlap"


def test_backward_raises_what_the_hook_cannot_do(cluster):
    job = cluster.job(1)
    cluster.aggregator(job)
    of_type, of_closed = findings(cluster.rank("refused", job, 0, cluster.folder / "rendezvous"))
    assert of_type["kind"] == "TypeError" and "torch.float64" in of_type["error"]
    assert of_closed["kind"] == "XaggError" and "closed" in of_closed["error"]


def test_backward_raises_when_the_aggregator_is_killed(cluster):
    job = cluster.job(2, timeout=3)
    aggregator = cluster.aggregator(job)
    ranks = [cluster.rank("train_on", job, rank, 2, cluster.folder / "rendezvous") for rank in range(2)]
    for rank in ranks:
        assert "trains" in rank.stdout.readline()
    aggregator.kill()
    for number, rank in enumerate(ranks):
        [found] = findings(rank, timeout=30)
        for word in [f"rank {number}", "operation", "phase"]:
            assert word in found["error"]


def test_backward_raises_when_a_rank_is_killed(cluster):
    job = cluster.job(2, timeout=3)
    cluster.aggregator(job)
    survivor, victim = [cluster.rank("train_on", job, rank, 2, cluster.folder / "rendezvous") for rank in range(2)]
    for rank in (survivor, victim):
        assert "trains" in rank.stdout.readline()
    victim.kill()
    [found] = findings(survivor, timeout=30)
    for word in ["rank 0", "operation", "phase", "rank 1 is missing"]:
        assert word in found["error"]
