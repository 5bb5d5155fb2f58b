"""Projection heads."""

from torch import Tensor, nn


class ProjectionHead(nn.Module):
    """SimCLR's head for ViTs: three linear layers without bias, each followed by batch norm.

    features_ND -> hidden -> hidden -> z_NE, ReLU between; the last norm has a scale but no shift
    (ronghanghu/moco_v3_tpu, models.py; SimCLR's model_util.py has no centre there either).
    """

    def __init__(self, width: int, hidden: int, out: int) -> None:
        super().__init__()
        last_norm = nn.BatchNorm1d(out)
        last_norm.bias.requires_grad_(False)
        self.layers = nn.Sequential(
            *_hidden_layer(width, hidden),
            *_hidden_layer(hidden, hidden),
            nn.Linear(hidden, out, bias=False),
            last_norm,
        )
        for layer in self.layers:
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)

    def forward(self, features_ND: Tensor) -> Tensor:
        z_NE: Tensor = self.layers(features_ND)
        return z_NE


def _hidden_layer(fan_in: int, fan_out: int) -> tuple[nn.Module, ...]:
    return nn.Linear(fan_in, fan_out, bias=False), nn.BatchNorm1d(fan_out), nn.ReLU(inplace=True)
