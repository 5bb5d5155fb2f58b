"""Two processes, started once, compute the same things as one process does on all rows.

Run as a script, this file is one of the two: RANK and the like are in the environment.
"""

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from accelssl.model.batch_norm import GlobalBatchNorm1d
from accelssl.model.gather import alone, gather
from accelssl.model.simclr import nt_xent

RANKS, ROWS, WIDTH = 2, 5, 7
Results = dict[str, Any]


def backward(loss: Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]


def gradient(leaf: Tensor) -> Tensor:
    assert leaf.grad is not None
    return leaf.grad


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def own(of_all: Tensor, rank: int) -> Tensor:
    return of_all[rank * ROWS : (rank + 1) * ROWS].clone().requires_grad_()


ALL_ROWS = drawn(RANKS * ROWS, WIDTH, seed=1)
# Each rank's loss weighs all rows in its own way.
WEIGHTS = drawn(RANKS, RANKS * ROWS, WIDTH, seed=2)
# Far from 0: sums of squares in float32 would lose the smallest variance.
FAR_ROWS = 30 + ALL_ROWS * torch.linspace(0.1, 3, WIDTH)
PULLS = drawn(RANKS * ROWS, WIDTH, seed=3)
Z_Q, Z_K = drawn(2, RANKS * ROWS, WIDTH, seed=4)


def cubed_and_weighed(rows: Tensor, weights: Tensor) -> Tensor:
    return (gather(rows**3) * weights).sum()


def on_one_rank(out: Path) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    results: Results = gathered_results(rank) | norm_results(rank) | loss_results(rank)
    torch.save(results, out / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def gathered_results(rank: int) -> Results:
    rows, again = own(ALL_ROWS, rank), own(ALL_ROWS, rank)
    backward(cubed_and_weighed(rows, WEIGHTS[rank]))
    # On both ranks: until torch 2.13, gloo's compiled collectives do not meet those that are not.
    compiled = torch.compile(cubed_and_weighed, backend="aot_eager", fullgraph=True)
    backward(compiled(again, WEIGHTS[rank]))
    columns = gather(own(ALL_ROWS, rank).detach().T.contiguous().T[:, 1:3])
    with alone():
        by_itself = gather(own(ALL_ROWS, rank).detach())
    return {
        **{"gradient": rows.grad, "compiled": again.grad, "columns": columns},
        **{"by itself": by_itself, "together again": gather(own(ALL_ROWS, rank).detach())},
    }


def norm_results(rank: int) -> Results:
    norm, rows = fresh_norm(GlobalBatchNorm1d(WIDTH)), own(FAR_ROWS, rank)
    normed = norm(rows)
    backward((normed * own(PULLS, rank)).sum())
    half = fresh_norm(GlobalBatchNorm1d(WIDTH))(own(ALL_ROWS, rank).bfloat16())
    return {
        "normed": normed.detach(),
        "rows": rows.grad,
        "weight": norm.weight.grad,
        "bias": norm.bias.grad,
        "state": norm.state_dict(),
        "plain": GlobalBatchNorm1d(WIDTH, affine=False)(own(FAR_ROWS, rank)).detach(),
        "eval": norm.eval()(own(ALL_ROWS, rank)).detach(),
        "half": half.detach(),
    }


def loss_results(rank: int) -> Results:
    z_q, z_k = own(Z_Q, rank), own(Z_K, rank)
    loss = nt_xent(z_q, z_k, 0.2)
    backward(loss)
    return {"loss": loss.detach(), "z_q": z_q.grad, "z_k": z_k.grad}


def fresh_norm(norm: nn.BatchNorm1d) -> nn.BatchNorm1d:
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(0.5, 2, WIDTH))
        norm.bias.copy_(torch.linspace(-1, 1, WIDTH))
    return norm


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Results]:
    out = tmp_path_factory.mktemp("ranks")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = os.environ | {"WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1"}
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, str(out)],
            env=shared | {"MASTER_PORT": port, "RANK": str(rank), "OMP_NUM_THREADS": "1"},
        )
        for rank in range(RANKS)
    ]
    try:
        assert [process.wait(timeout=120) for process in processes] == [0] * RANKS
    finally:
        for process in processes:
            process.kill()
    return [torch.load(out / f"{rank}.pt") for rank in range(RANKS)]


def joint(ranks: list[Results], name: str) -> Tensor:
    return torch.cat([results[name] for results in ranks])


def test_alone_rows_are_passed_on_as_they_are() -> None:
    rows = drawn(3, 2, seed=5)
    assert gather(rows) is rows


def test_every_rank_gets_all_rows_in_order_also_from_strided_tensors(ranks: list[Results]) -> None:
    for results in ranks:
        torch.testing.assert_close(results["columns"], ALL_ROWS[:, 1:3], atol=0, rtol=0)


def test_a_rank_that_is_alone_for_a_while_has_its_own_rows_only(ranks: list[Results]) -> None:
    torch.testing.assert_close(joint(ranks, "by itself"), ALL_ROWS, atol=0, rtol=0)
    for results in ranks:
        torch.testing.assert_close(results["together again"], ALL_ROWS, atol=0, rtol=0)


def test_a_row_is_told_what_all_ranks_losses_say_about_it(ranks: list[Results]) -> None:
    wanted = 3 * ALL_ROWS**2 * WEIGHTS.sum(0)
    torch.testing.assert_close(joint(ranks, "gradient"), wanted, atol=1e-5, rtol=1e-5)


def test_gathering_compiles_into_one_graph_with_the_same_gradients(ranks: list[Results]) -> None:
    torch.testing.assert_close(joint(ranks, "compiled"), joint(ranks, "gradient"))


@pytest.fixture(scope="module")
def single() -> Results:
    """torch's own batch norm over all rows, in float64."""
    norm = fresh_norm(nn.BatchNorm1d(WIDTH)).double()
    rows = FAR_ROWS.double().requires_grad_()
    normed = norm(rows)
    backward((normed * PULLS).sum())
    return {
        "normed": normed.detach().float(),
        "rows": gradient(rows).float(),
        "weight": gradient(norm.weight).float(),
        "bias": gradient(norm.bias).float(),
        "state": norm.float().state_dict(),
        "eval": norm.eval()(ALL_ROWS).detach(),
    }


def test_batch_norm_is_that_of_all_ranks_rows(ranks: list[Results], single: Results) -> None:
    torch.testing.assert_close(joint(ranks, "normed"), single["normed"], atol=1e-4, rtol=0)
    torch.testing.assert_close(joint(ranks, "eval"), single["eval"], atol=1e-5, rtol=1e-5)
    plain = nn.BatchNorm1d(WIDTH, affine=False).double()(FAR_ROWS.double()).float()
    torch.testing.assert_close(joint(ranks, "plain"), plain, atol=1e-4, rtol=0)


def test_batch_norms_gradients_are_those_of_all_ranks_rows(
    ranks: list[Results], single: Results
) -> None:
    torch.testing.assert_close(joint(ranks, "rows"), single["rows"], atol=1e-4, rtol=1e-4)
    for name in ("weight", "bias"):
        total = torch.stack([results[name] for results in ranks]).sum(0)
        torch.testing.assert_close(total, single[name], atol=1e-4, rtol=1e-5)


def test_running_statistics_are_the_same_on_all_ranks_and_those_of_one_process(
    ranks: list[Results], single: Results
) -> None:
    first, second = (results["state"] for results in ranks)
    assert list(first) == list(single["state"])
    assert all(torch.equal(first[name], second[name]) for name in first)
    for name, value in single["state"].items():
        torch.testing.assert_close(first[name], value, atol=1e-5, rtol=1e-5)


def test_batch_norm_keeps_bfloat16_and_computes_in_float32(ranks: list[Results]) -> None:
    half = joint(ranks, "half")
    assert half.dtype == torch.bfloat16
    wanted = fresh_norm(nn.BatchNorm1d(WIDTH))(ALL_ROWS.bfloat16().float())
    torch.testing.assert_close(half, wanted.bfloat16())


def test_the_mean_loss_of_the_ranks_and_its_gradients_are_those_of_one_process(
    ranks: list[Results],
) -> None:
    z_q, z_k = Z_Q.clone().requires_grad_(), Z_K.clone().requires_grad_()
    loss = nt_xent(z_q, z_k, 0.2)
    backward(loss)
    losses = torch.stack([results["loss"] for results in ranks])
    assert float(losses[0]) != pytest.approx(float(losses[1]), rel=1e-3)
    torch.testing.assert_close(losses.mean(), loss.detach(), atol=1e-5, rtol=1e-5)
    for name, wanted in (("z_q", z_q.grad), ("z_k", z_k.grad)):
        torch.testing.assert_close(joint(ranks, name) / RANKS, wanted, atol=1e-5, rtol=1e-5)


if __name__ == "__main__":
    on_one_rank(Path(sys.argv[1]))
