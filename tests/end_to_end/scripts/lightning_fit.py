"""A LightningModule with the Trainer's own logger and checkpoints. The argument is the number of steps."""

import sys
import time

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Regression(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 1))

    def training_step(self, batch, _):
        time.sleep(0.008)
        a, b = batch
        loss = (self.net(a) - b).square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


lightning.seed_everything(0)
x = torch.randn(6400, 32)
loader = DataLoader(TensorDataset(x, x[:, :1].sin()), batch_size=64, shuffle=True)
trainer = lightning.Trainer(max_steps=int(sys.argv[1]), accelerator="cpu", enable_progress_bar=False)
trainer.fit(Regression(), loader)
print(f"loss {float(trainer.callback_metrics['loss']):.6f}")
