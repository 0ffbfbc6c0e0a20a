"""Predict the sign of the next move of the E-mini S&P 500 future from its last ticks.

    python train.py [--ticks FILE] [--epochs N] [--seed N]

The data are 500,000 real trades of two days in September 2013; the PyPI package mlfinpy ships them. A sample is a
window of consecutive trades, its label whether the price stands higher or lower a short while after the window.
"""

import argparse
import csv
import gzip
import importlib.util
import os

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

WINDOW = 50  # trades the model sees
HORIZON = 200  # the label compares the price this many trades later
TICK = 0.25  # smallest price change, in index points


def find_ticks():
    spec = importlib.util.find_spec("mlfinpy")
    if spec is None:
        raise SystemExit("no tick data: pip install --no-deps mlfinpy==0.1.2, or pass --ticks FILE")
    return os.path.join(os.path.dirname(spec.origin), "dataset", "data", "tick_data.csv")


def read_ticks(path):
    """Times in seconds, prices in index points, volumes in contracts: one entry a trade."""
    opener = gzip.open if path.endswith(".gz") else open
    with opener(path, "rt") as f:
        rows = list(csv.reader(f))[1:]
    times = np.array([row[0] for row in rows], dtype="datetime64[ms]").astype(np.int64) / 1e3
    prices = np.array([float(row[1]) for row in rows])
    volumes = np.array([float(row[2]) for row in rows])
    return times, prices, volumes


class TickWindows(Dataset):
    """Windows of trades number first..last. Windows after which the price does not move are left out."""

    def __init__(self, times, prices, volumes, first, last):
        change = np.diff(prices, prepend=prices[0]) / TICK
        wait = np.diff(times, prepend=times[0])
        columns = [change, np.sign(change), np.log1p(volumes), np.log1p(wait)]
        self.features = np.stack(columns, axis=1).astype(np.float32)
        ends = np.arange(first + WINDOW, last - HORIZON)
        moves = prices[ends + HORIZON] - prices[ends]
        self.ends = ends[moves != 0]
        self.labels = (moves[moves != 0] > 0).astype(np.int64)

    def __len__(self):
        return len(self.ends)

    def __getitem__(self, i):
        end = self.ends[i]
        return torch.from_numpy(self.features[end - WINDOW : end]), torch.tensor(self.labels[i])


class TickTransformer(nn.Module):
    def __init__(self, features=4, width=64, heads=4, layers=2, dropout=0.1):
        super().__init__()
        self.embed = nn.Linear(features, width)
        self.position = nn.Parameter(torch.randn(WINDOW, width) * 0.02)
        self.dropout = nn.Dropout(dropout)
        layer = nn.TransformerEncoderLayer(
            width, heads, dim_feedforward=4 * width, dropout=dropout, activation="gelu", batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers)
        self.head = nn.Linear(width, 2)

    def forward(self, x):
        x = self.dropout(self.embed(x) + self.position)
        x = self.encoder(x)
        return self.head(x.mean(dim=1))


@torch.no_grad()
def evaluate(model, loader, criterion):
    """Mean loss and accuracy over the loader's samples."""
    model.eval()
    loss, right, count = 0.0, 0, 0
    for x, y in loader:
        logits = model(x)
        loss += criterion(logits, y).item() * len(y)
        right += (logits.argmax(dim=1) == y).sum().item()
        count += len(y)
    return loss / count, right / count


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ticks", help="CSV of DateTime,Price,Volume, plain or gzip (default: mlfinpy's)")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", default="model.pt", help="where the best weights go")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    ticks = read_ticks(args.ticks or find_ticks())
    count = len(ticks[0])
    train = TickWindows(*ticks, 0, int(0.8 * count))
    # the gap of HORIZON trades keeps training labels from reaching into the test windows
    test = TickWindows(*ticks, int(0.8 * count) + HORIZON, count)
    train_loader = DataLoader(train, batch_size=args.batch_size, shuffle=True)
    test_loader = DataLoader(test, batch_size=1024)
    print(f"{len(train):,} training and {len(test):,} test windows")

    model = TickTransformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    criterion = nn.CrossEntropyLoss()

    best = float("inf")
    for epoch in range(args.epochs):
        model.train()
        total = 0.0
        for step, (x, y) in enumerate(train_loader, start=1):
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            total += loss.item()
            if step % 100 == 0:
                print(f"epoch {epoch} step {step}/{len(train_loader)} loss {total / step:.4f}", flush=True)
        test_loss, accuracy = evaluate(model, test_loader, criterion)
        print(f"epoch {epoch} train loss {total / step:.4f} test loss {test_loss:.4f} accuracy {accuracy:.4f}")
        if test_loss < best:
            best = test_loss
            torch.save(model.state_dict(), args.output)


if __name__ == "__main__":
    main()
