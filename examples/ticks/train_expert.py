"""train.py tuned by hand: the same model, data, loss and optimizer, written for speed on a CPU.

    python train_expert.py [--ticks FILE] [--epochs N] [--seed N] [--no-compile]

What an expert changes after reading a profile of train.py, and nothing that changes what is learnt:
  - dropout masks come from 16 random bits an element, drawn once a step by a small, fast generator (SFC64), instead
    of one serial double-precision draw an element;
  - the encoder layers are written out, so that attention does not take the slow path that dropout forces on it;
  - the model is compiled, which fuses masks, activations, residuals and normalisations;
  - a batch is one gather from a strided view of the ticks; no Dataset, no collation;
  - AdamW is the fused kernel.
"""

import argparse
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader
from train import HORIZON, WINDOW, TickTransformer, TickWindows, evaluate, find_ticks, read_ticks

# an element is dropped when its 16 random bits, read as a signed integer, fall below this: rate 6554 / 65536
DROPPED_BELOW = round(0.1 * 65536) - 32768
KEPT_SCALE = 65536 / (65536 - round(0.1 * 65536))


class Windows:
    """Batches of TickWindows in random order: each one gather from a view, the last one of an epoch may be short."""

    def __init__(self, dataset, batch_size):
        self.windows = torch.from_numpy(dataset.features).unfold(0, WINDOW, 1).transpose(1, 2)
        self.starts = torch.from_numpy(dataset.ends - WINDOW)
        self.labels = torch.from_numpy(dataset.labels)
        self.batch_size = batch_size

    def __len__(self):
        return math.ceil(len(self.starts) / self.batch_size)

    def __iter__(self):
        for index in torch.randperm(len(self.starts)).split(self.batch_size):
            yield self.windows[self.starts[index]], self.labels[index]


class Masks:
    """The random bits of one step's dropout: one draw, cut into the sites of the model."""

    def __init__(self, width, heads, layers, hidden, seed):
        self.generator = np.random.SFC64(seed)
        a_layer = [heads * WINDOW * WINDOW, WINDOW * width, WINDOW * hidden, WINDOW * width]
        self.sites = [WINDOW * width, *(a_layer * layers)]

    def draw(self, batch):
        sizes = [batch * site for site in self.sites]
        words = self.generator.random_raw((sum(sizes) + 3) // 4)
        return torch.from_numpy(words.view(np.int16))[: sum(sizes)].split(sizes)


def drop(x, bits):
    return torch.where(bits.view(x.shape) < DROPPED_BELOW, 0.0, x * KEPT_SCALE)


class FastTickTransformer(TickTransformer):
    """TickTransformer with its forward written out; weights and their names are the same."""

    def forward(self, x, bits=None):
        if bits is None:
            return super().forward(x)
        bits = list(bits)
        x = drop(self.embed(x) + self.position, bits.pop(0))
        batch, time, width = x.shape
        for layer in self.encoder.layers:
            attention = layer.self_attn
            heads = attention.num_heads
            qkv = F.linear(x, attention.in_proj_weight, attention.in_proj_bias)
            q, k, v = qkv.view(batch, time, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
            weights = torch.matmul(q / math.sqrt(width // heads), k.transpose(-1, -2)).softmax(dim=-1)
            mixed = torch.matmul(drop(weights, bits.pop(0)), v).transpose(1, 2).reshape(batch, time, width)
            x = layer.norm1(x + drop(attention.out_proj(mixed), bits.pop(0)))
            hidden = drop(F.gelu(layer.linear1(x)), bits.pop(0))
            x = layer.norm2(x + drop(layer.linear2(hidden), bits.pop(0)))
        return self.head(x.mean(dim=1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ticks", help="CSV of DateTime,Price,Volume, plain or gzip (default: mlfinpy's)")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", default="model_expert.pt", help="where the best weights go")
    parser.add_argument("--no-compile", action="store_true", help="for machines without a compiler or Python headers")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    ticks = read_ticks(args.ticks or find_ticks())
    count = len(ticks[0])
    train = TickWindows(*ticks, 0, int(0.8 * count))
    test = TickWindows(*ticks, int(0.8 * count) + HORIZON, count)
    test_loader = DataLoader(test, batch_size=1024)
    print(f"{len(train):,} training and {len(test):,} test windows")

    model = FastTickTransformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01, fused=True)
    criterion = nn.CrossEntropyLoss()
    batches = Windows(train, args.batch_size)
    masks = Masks(width=64, heads=4, layers=2, hidden=256, seed=args.seed)
    forward = model if args.no_compile else torch.compile(model)

    best = float("inf")
    for epoch in range(args.epochs):
        model.train()
        total = torch.zeros(())
        for step, (x, y) in enumerate(batches, start=1):
            optimizer.zero_grad()
            loss = criterion(forward(x, masks.draw(len(x))), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            total += loss.detach()
            if step % 100 == 0:
                print(f"epoch {epoch} step {step}/{len(batches)} loss {total.item() / step:.4f}", flush=True)
        test_loss, accuracy = evaluate(model, test_loader, criterion)
        print(f"epoch {epoch} train loss {total.item() / step:.4f} test loss {test_loss:.4f} accuracy {accuracy:.4f}")
        if test_loss < best:
            best = test_loss
            torch.save(model.state_dict(), args.output)


if __name__ == "__main__":
    main()
