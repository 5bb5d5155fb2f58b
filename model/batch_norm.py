"""Batch norm over the rows of all ranks.

Shapes: N rows on this rank, R ranks, D width.
"""

import torch
from torch import Tensor, nn

from accelssl.model.gather import gather, world_size


def _of_rank(rows_ND: Tensor) -> Tensor:
    """Mean and biased variance over the rows of this rank, as statistics_2D."""
    rows_ND = rows_ND.to(torch.promote_types(rows_ND.dtype, torch.float32))
    variance_D, mean_D = torch.var_mean(rows_ND, dim=0, correction=0)
    return torch.stack([mean_D, variance_D])


def _normed(
    input_ND: Tensor, ranks_R2D: Tensor, weight_D: Tensor | None, bias_D: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows normalised over all ranks, and those mean and biased variance: within, then between."""
    means_RD, variances_RD = ranks_R2D.unbind(1)
    mean_D = means_RD.mean(0)
    variance_D = variances_RD.mean(0) + (means_RD - mean_D).square().mean(0)
    normed_ND = (input_ND.to(mean_D.dtype) - mean_D) * torch.rsqrt(variance_D + eps)
    if weight_D is not None and bias_D is not None:
        normed_ND = normed_ND * weight_D + bias_D
    return normed_ND.to(input_ND.dtype), mean_D, variance_D


class GlobalBatchNorm1d(nn.BatchNorm1d):
    """BatchNorm1d over the rows of all ranks while training; alone, and in eval, just that.

    For rows_ND, the same number on each rank. Unlike torch's SyncBatchNorm it runs on a CPU too,
    so that what is tested there is what trains on GPUs. Statistics are in float32 at least and
    combined from each rank's mean and variance, not from sums of squares, which cancel. Every rank
    computes the same bits, so running statistics need no broadcast. The state dict's keys are
    BatchNorm1d's.
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
        """Compile what stands before and after the gathering: some forty small kernels else."""
        self._of_rank = torch.compile(_of_rank, dynamic=False)
        self._normed = torch.compile(_normed, dynamic=False)

    @torch.no_grad()
    def _track(self, mean_D: Tensor, variance_D: Tensor, rows: int) -> None:
        """As BatchNorm1d does: the running variance is the unbiased one."""
        if self.running_mean is None or self.running_var is None or self.momentum is None:
            raise NotImplementedError("running statistics as a cumulative average, or none")
        self.running_mean.lerp_(mean_D, self.momentum)
        self.running_var.lerp_(variance_D * (rows / max(1, rows - 1)), self.momentum)
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
