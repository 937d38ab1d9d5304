"""One rank of a PyTorch DDP job on Fashion-MNIST; its gradients are summed by XAgg or by gloo.

Everything but the sum is the same in both runs: model, seeds, order of the data, optimizer, buckets. The gloo
process group is there in both: DDP sends the initial parameters with it, and the ranks add up their loss and their
correct answers with it after every epoch. `cargo xtask demo` starts the ranks and reads what they print: one JSON object
a line, with an "event" of "start", "step", "epoch" or "end".

How communication is timed: a bucket is in flight from the call of the hook to the completion of its future, and the
communication time of a step is the time in which at least one of its buckets was in flight (the union of these
intervals). The same code times both systems. It includes the wait for slower ranks and what overlaps with backward.
"""

import argparse
import gzip
import hashlib
import json
import pathlib
import time
from datetime import timedelta

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

CLASSES = 10
# Small enough that backward of the convolutions overlaps with the sum of the linear layers.
BUCKET_MEGABYTES = 1
# Set by the first step alone: DDP learns the order of its buckets there.
WARM_UP_STEPS = 1


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=["gloo", "xagg"], required=True, help="what sums the gradients")
    parser.add_argument("--job", help="the XAgg job file (needed by --backend xagg)")
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--rendezvous", required=True, metavar="HOST:PORT", help="where rank 0 gathers the gloo group")
    parser.add_argument("--data", type=pathlib.Path, required=True, help="the folder with the four idx files (.gz)")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--samples", type=int, default=30_000, help="training images per epoch, over all ranks")
    parser.add_argument("--batch", type=int, default=256, help="images per step, over all ranks, rounded down to equal parts")
    parser.add_argument("--learning-rate", type=float, default=0.1, help="the peak of the schedule")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.backend == "xagg" and arguments.job is None:
        parser.error("--backend xagg needs --job FILE")
    if arguments.batch < arguments.workers:
        parser.error(f"--batch {arguments.batch} is less than one image for each of {arguments.workers} workers")
    return arguments


def read_idx(path):
    """The array in a gzipped idx file: two zero bytes, type 8 (u8), dimensions, sizes (big-endian u32), bytes."""
    with gzip.open(path, "rb") as file:
        content = file.read()
    if content[:3] != b"\0\0\x08":
        raise ValueError(f"{path} is not an idx file of bytes")
    dimensions = content[3]
    shape = numpy.frombuffer(content, dtype=">u4", count=dimensions, offset=4)
    return numpy.frombuffer(content, dtype=numpy.uint8, offset=4 + 4 * dimensions).reshape(shape)


def load_split(folder, name):
    """Images as u8 [count, 1, 28, 28] and labels as i64 [count]."""
    images = read_idx(folder / f"{name}-images-idx3-ubyte.gz")
    labels = read_idx(folder / f"{name}-labels-idx1-ubyte.gz")
    return torch.from_numpy(images.copy()).unsqueeze(1), torch.from_numpy(labels.astype(numpy.int64))


def normalise(images):
    """The same as f32, with about zero mean and unit variance over the training set."""
    return images.float().div_(255).sub_(0.286).div_(0.353)


class Network(nn.Module):
    """Two convolutions and two linear layers: 408,298 parameters."""

    def __init__(self):
        super().__init__()
        self.convolution1 = nn.Conv2d(1, 8, kernel_size=3, padding=1)
        self.convolution2 = nn.Conv2d(8, 16, kernel_size=3, padding=1)
        self.linear1 = nn.Linear(16 * 7 * 7, 512)
        self.linear2 = nn.Linear(512, CLASSES)
        # PyTorch's own start is so small that the first steps learn nothing and the next ones overshoot.
        for layer in [self.convolution1, self.convolution2, self.linear1]:
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")

    def forward(self, images):
        hidden = functional.max_pool2d(functional.relu(self.convolution1(images)), 2)
        hidden = functional.max_pool2d(functional.relu(self.convolution2(hidden)), 2)
        return self.linear2(functional.relu(self.linear1(hidden.flatten(1))))


class CommunicationClock:
    """Times the buckets of a step: wraps a DDP communication hook."""

    def __init__(self, hook):
        self._hook = hook
        self._intervals = []

    def timed_hook(self, state, bucket):
        interval = [time.perf_counter(), None]
        self._intervals.append(interval)

        def completed(future):
            interval[1] = time.perf_counter()
            return future.value()

        return self._hook(state, bucket).then(completed)

    def take_seconds(self):
        """Seconds in which at least one bucket was in flight since the last call. Call it after backward."""
        seconds, covered = 0.0, 0.0
        for begin, end in sorted(self._intervals):
            seconds += max(0.0, end - max(begin, covered))
            covered = max(covered, end)
        self._intervals.clear()
        return seconds


def gloo_hook(world_size, bucket):
    """The mean by gloo, as DDP does without a hook: divide, then sum."""
    gradient = bucket.buffer().div_(world_size)
    return dist.all_reduce(gradient, async_op=True).get_future().then(lambda future: future.value()[0])


def open_backend(arguments):
    """The state and the hook for DDP, and what is to be asked for statistics and closed (None for gloo)."""
    if arguments.backend == "gloo":
        return arguments.workers, gloo_hook, None
    import xagg.torch

    group = xagg.torch.connect(job=arguments.job, rank=arguments.rank)
    return group, xagg.torch.all_reduce_hook, group


def sum_over_ranks(*values):
    totals = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(totals)
    return totals.tolist()


def emit(event, **fields):
    print(json.dumps({"event": event, **fields}), flush=True)


class Trainer:
    """The training of one rank; `run` returns when every epoch is done."""

    def __init__(self, arguments, clock, model):
        self.arguments = arguments
        self.clock = clock
        self.model = model
        self.images, self.labels = load_split(arguments.data, "train")
        self.test_images, self.test_labels = load_split(arguments.data, "t10k")
        self.part = arguments.batch // arguments.workers
        self.steps_per_epoch = min(arguments.samples, len(self.labels)) // (self.part * arguments.workers)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=arguments.learning_rate, momentum=0.9, weight_decay=1e-4)
        # Ends near zero, so that the last epochs settle and both runs end at comparable parameters.
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer,
            max_lr=arguments.learning_rate,
            total_steps=arguments.epochs * self.steps_per_epoch,
            pct_start=0.25,
        )
        self.step_seconds = []
        self.communication_seconds = []

    def batches(self, epoch):
        """This rank's part of every batch of an epoch, in an order that only the seed and the epoch decide."""
        generator = torch.Generator().manual_seed(self.arguments.seed * 1_000 + epoch)
        order = torch.randperm(len(self.labels), generator=generator)
        for step in range(self.steps_per_epoch):
            begin = (step * self.arguments.workers + self.arguments.rank) * self.part
            chosen = order[begin : begin + self.part]
            yield step, normalise(self.images[chosen]), self.labels[chosen]

    def train_step(self, images, labels):
        began = time.perf_counter()
        self.optimizer.zero_grad(set_to_none=True)
        loss = functional.cross_entropy(self.model(images), labels)
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        self.step_seconds.append(time.perf_counter() - began)
        self.communication_seconds.append(self.clock.take_seconds())
        return loss.item()

    def test(self):
        """How many images of this rank's share of the test set the model gets right."""
        mine = slice(self.arguments.rank, None, self.arguments.workers)
        self.model.eval()
        with torch.no_grad():
            scores = [self.model.module(normalise(images)) for images in self.test_images[mine].split(500)]
        self.model.train()
        return (torch.cat(scores).argmax(1) == self.test_labels[mine]).sum().item()

    def run(self):
        for epoch in range(1, self.arguments.epochs + 1):
            losses = 0.0
            for step, images, labels in self.batches(epoch):
                loss = self.train_step(images, labels)
                losses += loss
                emit(
                    "step",
                    epoch=epoch,
                    step=(epoch - 1) * self.steps_per_epoch + step + 1,
                    loss=loss,
                    step_seconds=self.step_seconds[-1],
                    comm_seconds=self.communication_seconds[-1],
                )
            losses, correct = sum_over_ranks(losses, self.test())
            emit(
                "epoch",
                epoch=epoch,
                loss=losses / (self.steps_per_epoch * self.arguments.workers),
                test_accuracy=correct / len(self.test_labels),
            )


def digest(model):
    """SHA-256 over all parameters' bytes: equal exactly if every bit is."""
    state = hashlib.sha256()
    for parameter in model.parameters():
        state.update(parameter.detach().numpy().tobytes())
    return state.hexdigest()


def mean_after_warm_up(values):
    values = values[WARM_UP_STEPS:] or values
    return sum(values) / len(values)


def train(arguments):
    torch.manual_seed(arguments.seed)
    model = DistributedDataParallel(Network(), bucket_cap_mb=BUCKET_MEGABYTES)
    state, hook, group = open_backend(arguments)
    try:
        clock = CommunicationClock(hook)
        model.register_comm_hook(state, clock.timed_hook)
        trainer = Trainer(arguments, clock, model)
        emit(
            "start",
            parameters=sum(parameter.numel() for parameter in model.parameters()),
            steps=arguments.epochs * trainer.steps_per_epoch,
            epochs=arguments.epochs,
        )
        began = time.perf_counter()
        trainer.run()
        emit(
            "end",
            seconds=time.perf_counter() - began,
            step_seconds=mean_after_warm_up(trainer.step_seconds),
            comm_seconds=mean_after_warm_up(trainer.communication_seconds),
            parameters_sha256=digest(model),
            stats=group.stats() if group else None,
        )
    finally:
        if group:
            group.close()


def main():
    arguments = parse_arguments()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://{arguments.rendezvous}",
        rank=arguments.rank,
        world_size=arguments.workers,
        timeout=timedelta(seconds=60),
    )
    train(arguments)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
