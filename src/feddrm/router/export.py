"""Export of a router as one ONNX file, from network inputs or features to probabilities (extra ``export``)."""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from feddrm.data.query_views import QueryViews
from feddrm.errors import FeddrmError, SettingError
from feddrm.io.atomic import write_atomically
from feddrm.models.onnx_file import OnnxExtractor
from feddrm.router.router import Router


def export_onnx(
    router: Router, path: Path, *, rule: str = "density", features_only: bool = False, views: int = 1
) -> None:
    """Write a function from the input [N, ...] to ``probabilities`` [N, m] by one routing rule.

    The input is what the network takes (``router.inputs`` scales raw images), or with
    ``features_only`` the features. N may vary. The function averages over so many ``views`` of an input.
    """
    router.evidence(router.scaler.mean[None], rule)  # refuses a rule that this router does not have
    averaged = router.views(views)
    if features_only and views > 1:
        raise SettingError(f"views={views}: features have no views: export without features_only, or leave views out")
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise FeddrmError("ONNX export needs more packages: pip install 'feddrm[export]'") from error
    if not features_only and any(isinstance(module, OnnxExtractor) for module in (router.net or nn.Module()).modules()):
        raise FeddrmError(
            "the router's network is an ONNX file already: give --features-only, and run the result on its output"
        )
    width = router.weight.shape[1]
    example = torch.zeros(2, width) if features_only else torch.zeros(2, *router.shape)
    own = replace(router, net=copy.deepcopy(router.net)).to("cpu")  # a copy: the caller's network must not change
    module = _Probabilities(own, rule, None if features_only else averaged).eval()
    # The exporter warns about its own internals; the tests compare its result.
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            module,
            (example,),
            input_names=["features" if features_only else "input"],
            output_names=["probabilities"],
            dynamic_shapes=({0: torch.export.Dim("samples", min=1)},),
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    write_atomically(path, program.model_proto.SerializeToString())


class _Probabilities(nn.Module):
    """The router's arithmetic, with all its tensors as constants."""

    def __init__(self, router: Router, rule: str, views: QueryViews | None) -> None:
        super().__init__()
        self.router, self.rule, self.views = router, rule, views  # without views the input is the features
        self.net = None if views is None or not router.recipe.needs else router.net
        if self.net is not None:
            self.net.load_state_dict({**self.net.state_dict(), **router.leaves})

    def forward(self, x: Tensor) -> Tensor:
        if self.views is not None:
            x = self.views.mean(x, self._features)["features"]
        return self.router.rule(self.rule).log_weights(self.router.evidence(x, self.rule)).exp()

    def _features(self, x: Tensor) -> dict[str, Tensor]:
        stages = {"input": x}
        if self.net is not None:
            _, stages = self.net.embed(x)
        return {"features": torch.cat([feature(self.net, stages) for feature in self.router.recipe.features], dim=1)}
