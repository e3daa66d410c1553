# SPDX-License-Identifier: MIT
"""ResNet-20 on Fashion-MNIST, as Debian's dataset-fashion-mnist has it:

    python3 examples/torch/resnet.py --trainers 2 --sync shadow-easgd

The last line has the steps a second of a trainer and the final model's accuracy on the test
images."""

import gzip
import pathlib

import numpy
import torch
from torch import nn
from torch.nn.functional import avg_pool2d, cross_entropy, pad, relu

import keeping


class Block(nn.Module):
    """Two convolutions beside a short cut, which drops every other pixel where they do, and has
    zeros for the channels that they add."""

    def __init__(self, before, after):
        super().__init__()
        self.stride = 1 if before == after else 2
        self.more = after - before
        self.first = nn.Conv2d(before, after, 3, self.stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(after)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(after)

    def forward(self, x):
        y = relu(self.first_norm(self.first(x)))
        y = self.second_norm(self.second(y))
        short = x[:, :, ::self.stride, ::self.stride]
        return relu(y + pad(short, (0, 0, 0, 0, 0, self.more)))


class ResNet20(nn.Sequential):
    """270 thousand parameters; x: (batch, 1, height, width)."""

    def __init__(self, classes=10):
        widths = [16, 16, 16, 16, 32, 32, 32, 64, 64, 64]
        super().__init__(nn.Conv2d(1, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
                         *(Block(*pair) for pair in zip(widths, widths[1:])),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))


def idx(path):
    """What a gzipped IDX file has, as an array of bytes."""
    raw = gzip.decompress(path.read_bytes())
    shape = numpy.frombuffer(raw, ">i4", raw[3], 4)
    return numpy.frombuffer(raw, numpy.uint8, offset=4 + 4 * raw[3]).reshape(shape)


def images(folder, name, n, smaller):
    """n images (all for 0), smaller by this factor, each brought to mean 0 and deviation 1, and
    their labels."""
    x = torch.from_numpy(idx(folder / f"{name}-images-idx3-ubyte.gz")[:n or None].astype("f4"))
    y = torch.from_numpy(idx(folder / f"{name}-labels-idx1-ubyte.gz")[:n or None].astype("i8"))
    x = avg_pool2d(x.unsqueeze(1), smaller)
    return (x - x.mean((2, 3), True)) / x.std((2, 3), keepdim=True), y


def accuracy(model, x, y):
    model.eval()
    with torch.no_grad():
        right = sum(int((model(a).argmax(1) == b).sum())
                    for a, b in zip(x.split(500), y.split(500)))
    return right / len(y)


def load(args):
    """What is learnt from, and what is judged by."""
    folder = pathlib.Path(args.data)
    if not folder.is_dir():
        raise SystemExit(f"there is no {folder}: apt-get install dataset-fashion-mnist, or --data")
    return (images(folder, "train", args.examples, args.smaller),
            images(folder, "t10k", args.held, args.smaller))


def main(args, data, held):
    torch.manual_seed(args.seed)
    model = ResNet20()
    kept, told = keeping.train(args, model, data, lambda model, x, y: cross_entropy(model(x), y))
    if kept.rank == 0:
        right = accuracy(model, *held)
        keeping.say(args, kept, told, accuracy=round(right, 4))


if __name__ == "__main__":
    keeping.launch(main, keeping.arguments(
        __doc__, epochs=5, batch=64, rates={"sgd": 0.05, "adamw": 0.002},
        more=[("data", "/usr/share/datasets/fashion-mnist"), ("smaller", 1)]), load)
