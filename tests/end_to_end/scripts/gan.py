"""A GAN: two critic steps a generator step, two optimizers. The argument is the number of generator steps."""

import sys
import time

import torch
from torch import nn

torch.manual_seed(0)
critic = nn.Sequential(nn.Linear(8, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
generator = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 8))
critic_optimizer = torch.optim.AdamW(critic.parameters(), lr=2e-4)
generator_optimizer = torch.optim.AdamW(generator.parameters(), lr=1e-4)
criterion = nn.BCEWithLogitsLoss()
ones, zeros = torch.ones(64, 1), torch.zeros(64, 1)
for _ in range(int(sys.argv[1])):
    for _ in range(2):
        time.sleep(0.004)
        critic_optimizer.zero_grad()
        fake = generator(torch.randn(64, 4)).detach()
        critic_loss = criterion(critic(torch.randn(64, 8)), ones) + criterion(critic(fake), zeros)
        critic_loss.backward()
        critic_optimizer.step()
    generator_optimizer.zero_grad()
    generator_loss = criterion(critic(generator(torch.randn(64, 4))), ones)
    generator_loss.backward()
    generator_optimizer.step()
print(f"loss {critic_loss.item():.6f} {generator_loss.item():.6f}")
