"""A log reads as one history, whatever was killed and resumed while it was written."""

import json
from pathlib import Path
from typing import Any

from accelssl.train.report.history import read_history


def step(number: int, loss: float = 1.0, elapsed_s: float | None = None) -> dict[str, Any]:
    return {
        "kind": "step",
        "step": number,
        "images": 10 * number,
        "spent": 8.0 * number,
        "elapsed_s": 2.0 * number if elapsed_s is None else elapsed_s,
        "loss": loss,
        "p": 30,
        "drop": 0.5,
        "keep": 32,
        "sample_cost": 0.8,
    }


def evaluation(number: int, nn1: float) -> dict[str, Any]:
    at = {"step": number, "spent": 8.0 * number, "elapsed_s": 2.0 * number}
    return {"kind": "eval", **at, "nn1": nn1, "knn20": nn1}


def make_run(run: Path, lines: list[dict[str, Any]]) -> Path:
    (run / "config.json").write_text("{}")
    (run / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


def test_steps_of_a_lost_process_are_superseded(tmp_path: Path) -> None:
    first = [step(1), step(2), evaluation(2, 20.0), step(3), step(4)]
    lost = [step(5, 99.0, 500.0), step(6, 99.0, 600.0), evaluation(6, 1.0)]
    again = [{"kind": "resume", "step": 4, "spent": 32.0}, step(5), evaluation(5, 44.0)]
    history = read_history(make_run(tmp_path, first + lost + again))
    assert history.steps.step.tolist() == [1, 2, 3, 4, 5]
    assert history.steps.loss.tolist() == [1.0] * 5
    assert history.steps.elapsed_s[-1] == 10.0
    assert [point.nn1 for point in history.evaluations] == [20.0, 44.0]
    assert history.resumes == (4.0,)


def test_what_was_lost_is_gone_at_once_even_before_the_next_step(tmp_path: Path) -> None:
    lines = [step(1), step(2), step(3), {"kind": "resume", "step": 1, "spent": 8.0}]
    assert read_history(make_run(tmp_path, lines)).steps.step.tolist() == [1]


def test_steps_that_go_back_without_a_resume_line_are_superseded_too(tmp_path: Path) -> None:
    lines = [step(1), step(2), step(3), step(4), step(5), step(3, loss=1.5)]
    history = read_history(make_run(tmp_path, lines))
    assert history.steps.step.tolist() == [1, 2, 3]
    assert history.steps.loss.tolist() == [1.0, 1.0, 1.5]


def test_an_evaluation_of_the_same_step_is_superseded(tmp_path: Path) -> None:
    lines = [step(1), evaluation(1, 30.0), step(2), evaluation(2, 31.0), evaluation(2, 32.0)]
    points = read_history(make_run(tmp_path, lines)).evaluations
    assert [(point.step, point.nn1) for point in points] == [(1, 30.0), (2, 32.0)]


def test_a_line_cut_inside_a_character_is_left_out(tmp_path: Path) -> None:
    run = make_run(tmp_path, [step(1)])
    with (run / "log.jsonl").open("ab") as file:
        file.write('{"kind": "step", "model": "é'.encode()[:-1])
    history = read_history(run)
    assert (len(history.steps), history.unreadable_lines) == (1, 1)


def test_a_line_of_brackets_without_end_is_left_out(tmp_path: Path) -> None:
    run = make_run(tmp_path, [step(1)])
    with (run / "log.jsonl").open("a") as file:
        file.write("[" * 100_000)
    history = read_history(run)
    assert (len(history.steps), history.unreadable_lines) == (1, 1)


def test_kinds_of_line_it_does_not_know_are_passed_over(tmp_path: Path) -> None:
    history = read_history(make_run(tmp_path, [{"kind": "weather", "sun": True}, step(1)]))
    assert (len(history.steps), history.unreadable_lines) == (1, 0)


def test_accuracies_run_from_the_untrained_network_to_the_last_evaluation(tmp_path: Path) -> None:
    run = make_run(tmp_path, [step(1), evaluation(1, 30.0), step(2), step(3)])
    scores = {"untrained": {"nn1": 20.0}, "trained": {"nn1": 40.0, "knn20": 50.0}}
    (run / "evaluation.json").write_text(json.dumps({**scores, "step": 3}))
    points = read_history(run).accuracies
    assert [(point.spent, point.nn1) for point in points] == [(0, 20.0), (8.0, 30.0), (24.0, 40.0)]
    (run / "evaluation.json").write_text(json.dumps({**scores, "step": 2}))
    assert [point.nn1 for point in read_history(run).accuracies] == [20.0, 30.0]
