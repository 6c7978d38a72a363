"""The FLARE layer in another network: a point-cloud classifier whose attention costs O(N).

    python examples/layer_in_your_network.py

`FLARE` replaces `nn.MultiheadAttention`; the rest of the network stays the same. The network learns in a few seconds to
distinguish noisy ellipsoids from tori of 256 to 512 points.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from flare import FLARE


class CloudClassifier(nn.Module):
    """Classifier with two residual FLARE layers and a mean over the real points."""

    def __init__(self, channels: int = 32, classes: int = 2) -> None:
        super().__init__()
        self.lift = nn.Sequential(nn.Linear(3, channels), nn.GELU(), nn.Linear(channels, channels))
        self.norms = nn.ModuleList(nn.LayerNorm(channels) for _ in range(2))
        self.mixers = nn.ModuleList(FLARE(channels, heads=4, latents=16, kv_depth=0) for _ in range(2))
        self.head = nn.Linear(channels, classes)

    def forward(self, points: Tensor, mask: Tensor) -> Tensor:
        x = self.lift(points)
        for norm, mixer in zip(self.norms, self.mixers, strict=True):
            x = x + mixer(norm(x), mask)
        pooled = (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return self.head(pooled)


def clouds(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Draw points [B, 512, 3], mask [B, 512] and labels [B]: 0 for an ellipsoid, 1 for a torus."""

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator)

    labels = torch.arange(count) % 2
    u, v = 2 * torch.pi * uniform(2, count, 512)
    ring, tube = 1.0, 0.3 + 0.3 * uniform(count, 1)
    torus = torch.stack([(ring + tube * v.cos()) * u.cos(), (ring + tube * v.cos()) * u.sin(), tube * v.sin()], -1)
    sphere = nn.functional.normalize(torch.randn(count, 512, 3, generator=generator), dim=-1)
    ellipsoid = sphere * (0.5 + uniform(count, 1, 3))
    points = torch.where(labels[:, None, None] == 1, torus, ellipsoid)
    points = points + 0.05 * torch.randn(points.shape, generator=generator)
    real = 256 + (256 * uniform(count)).long()
    return points, torch.arange(512) < real[:, None], labels


def main(steps: int = 150) -> float:
    """Train the classifier and return its accuracy on new clouds."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    model = CloudClassifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
        points, mask, labels = clouds(16, generator)
        loss = nn.functional.cross_entropy(model(points, mask), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    points, mask, labels = clouds(200, generator)
    with torch.no_grad():
        accuracy = (model(points, mask).argmax(-1) == labels).float().mean().item()
    print(f"accuracy on 200 new clouds: {accuracy:.1%}")
    return accuracy


if __name__ == "__main__":
    main()
