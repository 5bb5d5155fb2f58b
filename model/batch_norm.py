"""Batch norm over the rows of all ranks.

Shapes: N rows on this rank, R ranks, D width.
"""

import torch
from torch import Tensor, nn

from accelssl.model.gather import gather, world_size


def _of_rank(rows_ND: Tensor) -> Tensor:
    """Return mean and biased variance over the rows of this rank, as statistics_2D."""
    rows_ND = rows_ND.to(torch.promote_types(rows_ND.dtype, torch.float32))
    variance_D, mean_D = torch.var_mean(rows_ND, dim=0, correction=0)
    return torch.stack([mean_D, variance_D])


def _normed(
    input_ND: Tensor, ranks_R2D: Tensor, weight_D: Tensor | None, bias_D: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalise rows over all ranks. Return the rows, the global mean and the biased variance.

    The variance is the variance within ranks plus the variance between ranks.
    """
    means_RD, variances_RD = ranks_R2D.unbind(1)
    mean_D = means_RD.mean(0)
    variance_D = variances_RD.mean(0) + (means_RD - mean_D).square().mean(0)
    normed_ND = (input_ND.to(mean_D.dtype) - mean_D) * torch.rsqrt(variance_D + eps)
    if weight_D is not None and bias_D is not None:
        normed_ND = normed_ND * weight_D + bias_D
    return normed_ND.to(input_ND.dtype), mean_D, variance_D


class GlobalBatchNorm1d(nn.BatchNorm1d):
    """BatchNorm1d over the rows of all ranks in training; plain BatchNorm1d alone and in eval.

    Input: rows_ND, the same number of rows on each rank. Unlike torch's SyncBatchNorm, the module
    also runs on a CPU, so CPU tests cover the code that trains on GPUs. Statistics are in float32
    at least. They combine each rank's mean and variance; sums of squares would cancel. Every rank
    computes the same bits, so running statistics need no broadcast. The state dict has the keys of
    BatchNorm1d.
    """

    _of_rank = staticmethod(_of_rank)
    _normed = staticmethod(_normed)

    def forward(self, input: Tensor) -> Tensor:
        if world_size() == 1 or not self.training:
            return super().forward(input)
        with torch.autocast(input.device.type, enabled=False):
            ranks_R2D = gather(self._of_rank(input)[None])
            weight, bias = (self.weight, self.bias) if self.affine else (None, None)
            normed_ND, mean_D, variance_D = self._normed(input, ranks_R2D, weight, bias, self.eps)
            self._track(mean_D.detach(), variance_D.detach(), len(input) * world_size())
        return normed_ND

    def compile_parts(self) -> None:
        """Compile the parts before and after the gather: some forty small kernels otherwise."""
        self._of_rank = torch.compile(_of_rank, dynamic=False)
        self._normed = torch.compile(_normed, dynamic=False)

    @torch.no_grad()
    def _track(self, mean_D: Tensor, variance_D: Tensor, rows: int) -> None:
        """Update the running statistics as BatchNorm1d does: the running variance is unbiased."""
        if self.running_mean is None or self.running_var is None or self.momentum is None:
            raise NotImplementedError("running statistics as a cumulative average, or none")
        self.running_mean.lerp_(mean_D, self.momentum)
        self.running_var.lerp_(variance_D * (rows / max(1, rows - 1)), self.momentum)
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
