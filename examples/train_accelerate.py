"""Train a small model with Hugging Face Accelerate, on CPU or GPU."""

from __future__ import annotations

import argparse

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    """Prepare, train, show the loss."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    accelerator = Accelerator()
    torch.manual_seed(0)
    inputs = torch.randn(512, 16)
    targets = inputs[:, :4].sum(1, keepdim=True).tanh()
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=32, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(args.epochs):
        for batch, wanted in loader:
            loss = nn.functional.mse_loss(model(batch), wanted)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
        accelerator.print(f"epoch {epoch}  loss {loss.item():.4f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
