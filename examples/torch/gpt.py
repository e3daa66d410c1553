# SPDX-License-Identifier: MIT
"""A small GPT that learns to continue text, byte by byte: the licences that every Debian system
has in /usr/share/common-licenses, or the files of --text:

    python3 examples/torch/gpt.py --trainers 2 --sync dasgd-delta

The last line has the steps a second of a trainer and the final model's loss, in nats a byte, on the
last tenth of each file."""

import pathlib

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import keeping

WINDOW, WIDTH, HEADS, LAYERS = 64, 64, 4, 2
LICENCES = "/usr/share/common-licenses"


class Attention(nn.Module):
    """Each byte looks at those before it."""

    def __init__(self):
        super().__init__()
        self.ask = nn.Linear(WIDTH, 3 * WIDTH)
        self.answer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = self.ask(x).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        score = q @ k.transpose(2, 3) * q.shape[3] ** -0.5
        place = torch.arange(length)
        weight = score.masked_fill(place > place[:, None], float("-inf")).softmax(3)
        return self.answer((weight @ v).transpose(1, 2).reshape(batch, length, WIDTH))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attend = nn.Sequential(nn.LayerNorm(WIDTH), Attention())
        self.think = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(),
                                   nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        x = x + self.attend(x)
        return x + self.think(x)


class GPT(nn.Module):
    """121 thousand parameters; the last layer has the embedding's weights."""

    def __init__(self):
        super().__init__()
        self.byte = nn.Embedding(256, WIDTH)
        self.place = nn.Embedding(WINDOW, WIDTH)
        self.layers = nn.Sequential(*(Layer() for _ in range(LAYERS)), nn.LayerNorm(WIDTH))
        nn.init.normal_(self.byte.weight, std=WIDTH ** -0.5)

    def forward(self, text):
        x = self.byte(text) + self.place.weight[:text.shape[1]]
        return self.layers(x) @ self.byte.weight.t()


def loss_of(model, window):
    guess = model(window[:, :-1])
    return cross_entropy(guess.flatten(0, 1), window[:, 1:].flatten())


def windows(texts):
    """(n, WINDOW + 1), one after the other."""
    return torch.cat([torch.tensor(list(text)).unfold(0, WINDOW + 1, WINDOW) for text in texts])


def read(where):
    """What is learnt from, and what the model is judged by."""
    path = pathlib.Path(where)
    files = sorted(f for f in path.iterdir() if not f.is_symlink()) if path.is_dir() else [path]
    texts = [file.read_bytes() for file in files]
    cut = [(text, len(text) * 9 // 10) for text in texts if len(text) > 20 * WINDOW]
    return windows(text[:n] for text, n in cut), windows(text[n:] for text, n in cut)


def main(args):
    torch.manual_seed(args.seed)
    model = GPT()
    learnt, held = read(args.text)
    kept, told = keeping.train(args, model, [learnt[:args.examples or None]], loss_of)
    if kept.rank == 0:
        with torch.no_grad():
            loss = float(loss_of(model.eval(), held[:args.held or None]))
        keeping.say(args, kept, told, loss=round(loss, 4))


if __name__ == "__main__":
    keeping.launch(main, keeping.arguments(
        __doc__, epochs=10, batch=16, rates={"sgd": 0.2, "adamw": 0.005},
        more=[("text", LICENCES)]))
