"""Two ranks against one process: a step, a vote, an error.

Run as a module, this file is one of two ranks: RANK and the like are in the environment. It imports
no more than they need, for each starts anew.
"""

import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from accelssl.errors import UserError
from accelssl.model.dino import DINO
from accelssl.model.gather import gather_detached
from accelssl.model.moco import MoCo
from accelssl.model.objective import Objective
from accelssl.model.simclr import SimCLR
from accelssl.train.methods import METHODS
from accelssl.train.optim.adamw import adamw, set_learning_rate
from accelssl.train.ranks.distributed import (
    ALONE,
    EAGER_STEPS,
    VOTE_LAG,
    Ranks,
    Votes,
    device_of,
    joined,
    read_ranks,
    replicate,
    this_job,
)
from accelssl.train.ranks.streams import training_stream
from tests import small_vit

CPU = torch.device("cpu")
RANKS, BATCH, STEPS = 2, 6, 3
VIEWS = {"simclr": 2, "moco": 2, "dino": 5}
SIGNALLED_AT = 4
ROOT = Path(__file__).parents[3]
Results = dict[str, Any]


def objective(device: torch.device, algo: str = "simclr") -> Objective:
    """In float64: batch norm divides by how little the views differ at first, and AdamW by how
    small a gradient is, so that float32's rounding would be what is compared."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"head_hidden": 32, "head_out": 16}
    if algo == "dino":
        dino = DINO(small_vit.NAME, mode="official", prototypes=24, drop_path=0.0, **sizes)
        return dino.to(device, torch.float64)
    method = MoCo if algo == "moco" else SimCLR
    return method(small_vit.NAME, **sizes).to(device, torch.float64)


def view(step: int, index: int, ranks: Ranks, device: torch.device) -> SimpleNamespace:
    """This rank's part of a batch of tokens that only its number tells from others."""
    drawn = torch.Generator().manual_seed(10 * step + index)
    values = torch.randn(BATCH, 4, 768, generator=drawn, dtype=torch.float64)
    keep_idx = torch.stack([torch.randperm(25, generator=drawn)[:4] for _ in range(BATCH)])
    share = ranks.share(BATCH)
    mine = slice(ranks.rank * share, (ranks.rank + 1) * share)
    values, keep_idx = values[mine].to(device), keep_idx[mine].to(device)
    return SimpleNamespace(values_NLV=values, keep_idx_NL=keep_idx, p=48, grid=5)


def steps(ranks: Ranks, device: torch.device = CPU, algo: str = "simclr") -> Results:
    """A few steps of training; what came of them."""
    trained = objective(device, algo)
    replica, optimizer = replicate(trained, device), adamw(trained, 0.1)
    set_learning_rate(optimizer, 1e-3)
    losses, gradients = [], {}
    for step in range(STEPS):
        trained.set_progress(step / STEPS)
        loss = replica(*(view(step, index, ranks, device) for index in range(VIEWS[algo])))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if step == 0:
            named = trained.named_parameters()
            gradients = {name: p.grad.clone() for name, p in named if p.grad is not None}
        trained.after_backward()
        optimizer.step()
        trained.after_step()
        losses.append(gather_detached(loss.view(1)).mean())
    return {
        "losses": torch.stack(losses),
        "gradients": gradients,
        "state": {name: value.clone() for name, value in trained.state_dict().items()},
    }


def votes(ranks: Ranks) -> list[int]:
    """Rank 1 catches signal 15 at step SIGNALLED_AT, rank 0 none."""
    ballot = Votes(ranks)
    caught = [15 * (ranks.rank == 1 and step >= SIGNALLED_AT) for step in range(10)]
    said = [ballot.cast(signal) for signal in caught]
    ballot.close()
    return said


def captured_losses(ranks: Ranks, device: torch.device, eager: int) -> Tensor:
    """Losses of EAGER_STEPS + 3 steps on one batch, all after `eager` replayed by a CUDA graph."""
    stream = training_stream(device)
    with torch.cuda.stream(stream):
        trained = objective(device)
        replica = replicate(trained, device)
        optimizer = torch.optim.SGD([p for p in trained.parameters() if p.requires_grad], 1e-3)
        pair = [view(0, index, ranks, device) for index in range(2)]

        def step() -> Tensor:
            optimizer.zero_grad(set_to_none=True)
            loss = replica(*pair)
            loss.backward()
            optimizer.step()
            return gather_detached(loss.view(1)).mean()

        losses = [step().clone() for _ in range(eager)]
        if eager < EAGER_STEPS + 3:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                loss = step()
            for _ in range(3):
                graph.replay()
                losses.append(loss.clone())
        return torch.stack(losses).cpu()


def on_one_rank(task: str, out: Path) -> None:
    placed = read_ranks()
    asked = torch.device("cuda" if task == "cuda" else "cpu")
    device = device_of(placed, asked)
    with joined(placed, device) as ranks:
        results: Results = {algo: steps(ranks, device, algo) for algo in METHODS}
        results["votes"] = votes(ranks)
        results["told"] = ranks.from_main({"precision": f"bf{ranks.rank}"})
        if task == "cuda":
            results["graph"] = captured_losses(ranks, device, EAGER_STEPS)
            results["eager"] = captured_losses(ranks, device, EAGER_STEPS + 3)
    torch.save(results, out / f"{placed.rank}.pt")  # after the others were left in good order
    if task == "cpu then fail":
        os.environ["MASTER_PORT"] = os.environ["ANOTHER_PORT"]
        with joined(placed, device) as ranks:
            fail(ranks)


def fail(ranks: Ranks) -> None:
    """Rank 1 fails while the other waits for it."""
    if ranks.rank == 1:
        raise UserError("Image 17 is cut off.", "Mend it.")
    ranks.wait()


@dataclass(frozen=True)
class Ended:
    """What became of RANKS processes: exit codes, standard errors, and what they saved."""

    codes: list[int]
    errors: list[str]
    results: list[Results]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    return run_ranks("cpu then fail", tmp_path_factory.mktemp("ranks"))


@pytest.fixture(scope="module")
def ranks(ended: Ended) -> list[Results]:
    return ended.results


def run_ranks(task: str, out: Path, module: str = "tests.train.ranks.test_distributed") -> Ended:
    """Runs this file, or another such module, as RANKS ranks."""
    with socket.socket() as free, socket.socket() as also_free:
        for each in (free, also_free):
            each.bind(("127.0.0.1", 0))
        port, another_port = free.getsockname()[1], also_free.getsockname()[1]
    shared: Results = {"WORLD_SIZE": RANKS, "LOCAL_WORLD_SIZE": RANKS, "OMP_NUM_THREADS": 1}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "ANOTHER_PORT": another_port}
    processes = []
    for rank in range(RANKS):
        told = {k: str(v) for k, v in (shared | {"RANK": rank, "LOCAL_RANK": rank}).items()}
        command = [sys.executable, "-m", module, task, str(out)]
        processes.append(
            subprocess.Popen(
                command, cwd=ROOT, env=os.environ | told, stderr=subprocess.PIPE, text=True
            )
        )
    try:
        errors = [process.communicate(timeout=120)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    saved = [out / f"{rank}.pt" for rank in range(RANKS)]
    assert all(path.exists() for path in saved), errors
    results = [torch.load(path, map_location="cpu") for path in saved]
    return Ended([process.returncode for process in processes], errors, results)


@pytest.fixture(scope="module", params=METHODS)
def algo(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def single(algo: str) -> Results:
    return steps(ALONE, algo=algo)


@pytest.fixture(scope="module")
def trained_ranks(ranks: list[Results], algo: str) -> list[Results]:
    return [results[algo] for results in ranks]


def largest(tensors: dict[str, Tensor]) -> float:
    return max(float(tensor.abs().max()) for tensor in tensors.values())


def test_gradients_of_two_ranks_are_those_of_one_process(
    trained_ranks: list[Results], single: Results, algo: str
) -> None:
    wanted = single["gradients"]
    trained = [name for name, p in objective(CPU, algo).named_parameters() if p.requires_grad]
    assert list(wanted) == trained and largest(wanted) > 0.01
    for results in trained_ranks:
        assert list(results["gradients"]) == trained
        for name, gradient in results["gradients"].items():
            torch.testing.assert_close(gradient, wanted[name], atol=1e-9, rtol=1e-9)


def test_losses_of_two_ranks_are_those_of_one_process(
    trained_ranks: list[Results], single: Results
) -> None:
    for results in trained_ranks:
        torch.testing.assert_close(results["losses"], single["losses"], atol=1e-9, rtol=1e-9)
    assert single["losses"].unique().numel() == STEPS


def test_weights_and_running_statistics_stay_the_same_on_all_ranks(
    trained_ranks: list[Results], single: Results, algo: str
) -> None:
    first, second = (results["state"] for results in trained_ranks)
    assert list(first) == list(second) == list(single["state"])
    assert all(torch.equal(first[name], second[name]) for name in first)
    norms = {"simclr": 3, "moco": 3 + 2 + 3, "dino": 0}[algo]
    assert len([name for name in first if "running" in name or "tracked" in name]) == 3 * norms
    for name, value in single["state"].items():
        torch.testing.assert_close(first[name], value, atol=1e-7, rtol=1e-7)


def test_a_signal_on_one_rank_stops_all_after_the_same_step(ranks: list[Results]) -> None:
    heard_at = SIGNALLED_AT + VOTE_LAG
    assert [results["votes"] for results in ranks] == [[0] * heard_at + [15] * (10 - heard_at)] * 2
    assert votes(ALONE) == [0] * 10 and Votes(ALONE).cast(15) == 15


def test_what_rank_0_decides_holds_for_all(ranks: list[Results]) -> None:
    assert [results["told"] for results in ranks] == [{"precision": "bf0"}] * 2
    assert ALONE.from_main("fp32") == "fp32"


def test_an_error_on_one_rank_is_told_on_all(ended: Ended) -> None:
    assert ended.codes == [1, 1]
    waiting, failed = ended.errors
    assert "UserError: Rank 1: Image 17 is cut off. Mend it." in failed
    assert "UserError: Rank 0 stopped because of rank 1: Image 17 is cut off. Mend" in waiting


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < RANKS, reason="needs two GPUs")
def test_two_gpus_train_as_one_process_on_the_cpu_does_also_in_a_cuda_graph(
    single: Results, algo: str, tmp_path: Path
) -> None:
    trained = run_ranks("cuda", tmp_path)
    assert trained.codes == [0] * RANKS, trained.errors
    for results in trained.results:
        found = results[algo]
        torch.testing.assert_close(found["losses"], single["losses"], atol=1e-7, rtol=1e-7)
        # Torch's weight norm, which DINO's head has, computes float64 on a GPU to 4e-8.
        for name, gradient in found["gradients"].items():
            torch.testing.assert_close(gradient, single["gradients"][name], atol=1e-6, rtol=1e-6)
        torch.testing.assert_close(results["graph"], results["eager"], atol=1e-9, rtol=1e-9)
        assert results["eager"].unique().numel() == EAGER_STEPS + 3


def test_alone_the_objective_is_its_own_replica() -> None:
    module = nn.Linear(2, 2)
    assert replicate(module, CPU) is module


def test_a_batch_that_does_not_divide_among_the_ranks_is_refused() -> None:
    assert Ranks(1, 4).share(512) == 128
    with pytest.raises(UserError, match=r"batch of 514 images .* 4 ranks.*--batch 512"):
        Ranks(0, 4).share(514)
    with pytest.raises(UserError, match=r"batch of 2 images .* 8 ranks.*--batch 8"):
        Ranks(0, 8).share(2)


def test_an_environment_that_is_half_torchruns_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    for name in (*names, "TORCHELASTIC_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(UserError, match=r"WORLD_SIZE is 3, but RANK, LOCAL_RANK.*torchrun"):
        read_ranks()
    for value, name in enumerate(names):
        monkeypatch.setenv(name, str(value))
    assert read_ranks() == Ranks(0, 3, 1, 2)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "5")
    assert read_ranks() == Ranks(0, 3, 1, 2, restarts=5)
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert read_ranks() == Ranks(restarts=5)
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT")
    assert read_ranks() == ALONE


def test_a_job_is_named_by_what_its_torchruns_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job7")
    assert this_job() == "job7"
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")  # none was given
    alone = this_job()
    assert str(os.getppid()) in alone.split()
    monkeypatch.delenv("TORCHELASTIC_RUN_ID")
    assert this_job() == alone


def test_each_rank_takes_the_gpu_of_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    cuda = torch.device("cuda")
    assert device_of(Ranks(7, 8, 3, 4), cuda) == torch.device("cuda:3")
    assert device_of(ALONE, cuda) == cuda and device_of(Ranks(1, 2, 1, 2), CPU) == CPU
    with pytest.raises(UserError, match="cuda:1 names one GPU for 2 ranks"):
        device_of(Ranks(0, 2, 0, 2), torch.device("cuda:1"))
    with pytest.raises(UserError, match=r"Rank 4 finds no GPU: torch sees 4 .* 5 ranks"):
        device_of(Ranks(4, 5, 4, 5), cuda)


if __name__ == "__main__":
    on_one_rank(sys.argv[1], Path(sys.argv[2]))
