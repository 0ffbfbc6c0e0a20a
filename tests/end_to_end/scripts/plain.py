"""A plain training loop. The argument is the number of steps."""

import itertools
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(512, 32)
loader = DataLoader(TensorDataset(x, x[:, :1].sin()), batch_size=64, shuffle=True)
model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
epochs = (batch for _ in itertools.count() for batch in loader)
for a, b in itertools.islice(epochs, int(sys.argv[1])):
    time.sleep(0.008)
    optimizer.zero_grad()
    loss = (model(a) - b).square().mean()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.6f}")
