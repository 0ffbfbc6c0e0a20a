"""Four backward calls a step, clipping, a schedule. The argument is the number of steps."""

import sys
import time

import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(512, 32)
y = x[:, :1].sin()
model = nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)
for _ in range(int(sys.argv[1])):
    for _ in range(4):
        time.sleep(0.002)
        rows = torch.randint(512, (32,))
        loss = (model(x[rows]) - y[rows]).square().mean() / 4
        loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
print(f"loss {loss.item():.6f}")
