from __future__ import annotations

import pytest
import torch

from feddrm.models import Mlp
from feddrm.router import Calibration, Recipe, Router
from feddrm.router.solver.problem import Scaler


def make_router(clients: int = 3, recipe: str = "raw+multiscale+colour", **more: object) -> Router:
    """A router of made-up numbers for grey 8x8 images."""
    net = Mlp(hidden=(8, 4), branch=4).build((1, 8, 8), 3, clients, seed=1).requires_grad_(False)
    leaves = {leaf: value.detach() for leaf, value in net.named_parameters() if not leaf.startswith("head.")}
    chosen = Recipe.parse(recipe)
    g = torch.Generator().manual_seed(0)
    blank = Router(
        (),
        chosen,
        Scaler(torch.zeros(1), torch.ones(1)),
        torch.zeros(1, 1),
        torch.zeros(1),
        torch.zeros(1),
        net=net,
        leaves=leaves,
    )
    width = blank.features(torch.zeros(1, 1, 8, 8)).shape[1]
    settings: dict[str, object] = {
        "names": ("oslo", "lima", "kyoto", "quito")[:clients],
        "recipe": chosen,
        "scaler": Scaler(torch.rand(width, generator=g), 1 + torch.rand(width, generator=g)),
        "weight": 0.3 * torch.randn(clients, width, generator=g),
        "bias": torch.randn(clients, generator=g),
        "log_prior": torch.tensor([0.5, 0.3, 0.2, 0.1])[:clients].log().log_softmax(0),
        "net": net,
        "leaves": leaves,
        "shape": (1, 8, 8),
        "calibration": Calibration(1.3, {"density": tuple(i / 100 for i in range(101))}, {"density_0.1": 0.05}),
    }
    settings |= made_competence(blank, settings["scaler"], clients)
    return Router(**(settings | more))  # type: ignore[arg-type]


def made_competence(blank: Router, scaler: Scaler, clients: int) -> dict[str, object]:
    """Log-odds that differ between noisy images about zero, and client means among their features."""
    g = torch.Generator().manual_seed(7)
    x = scaler(blank.features(2 * torch.rand(40, 1, 8, 8, generator=g) - 1))
    weight = torch.randn(clients, x.shape[1], generator=g)
    z = x @ weight.T
    point = torch.cat([weight.T / z.std(0), -z.mean(0)[None] / z.std(0)]).T.contiguous()
    return {"competence": point, "means": x[:clients]}


@pytest.fixture
def router() -> Router:
    return make_router()


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randint(256, (20, 1, 8, 8), generator=torch.Generator().manual_seed(5), dtype=torch.uint8)
