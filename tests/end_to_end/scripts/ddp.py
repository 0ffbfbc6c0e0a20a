"""DistributedDataParallel over gloo, started by torchrun; rank 0 saves its start. Argument: the number of steps."""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1)))
torch.manual_seed(1 + dist.get_rank())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
if dist.get_rank() == 0:
    torch.save(model.state_dict(), "start.pt")
for _ in range(int(sys.argv[1])):
    time.sleep(0.008)
    optimizer.zero_grad()
    x = torch.randn(64, 64)
    loss = (model(x) - x[:, :1].sin()).square().mean()
    loss.backward()
    optimizer.step()
if dist.get_rank() == 0:
    print(f"loss {loss.item():.6f}")
dist.destroy_process_group()
