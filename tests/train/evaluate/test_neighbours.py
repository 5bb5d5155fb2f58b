import math

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier

from accelssl.pipeline.loader import LoaderOptions, Tokens
from accelssl.shards.shard_set import ShardSet
from accelssl.train.evaluate.features import Extract, features, pixel_features
from accelssl.train.evaluate.neighbours import nearest_neighbours, neighbours_of

OPTIONS = LoaderOptions(batch=8, seed=0, device=torch.device("cpu"))


def problem(bank: int = 300, queries: int = 2100, classes: int = 5) -> tuple[torch.Tensor, ...]:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(classes, 12))
    labels = [rng.integers(0, classes, count) for count in (bank, queries)]
    features = [
        (centres[y] + 1.3 * rng.normal(size=(len(y), 12))) * rng.uniform(0.2, 5, (len(y), 1))
        for y in labels
    ]
    tensors = [torch.from_numpy(x) for pair in zip(features, labels, strict=True) for x in pair]
    return tensors[0].float(), tensors[1], tensors[2].float(), tensors[3]


@pytest.mark.parametrize(
    ("k", "name", "weights"),
    [(1, "nn1", "uniform"), (20, "knn20", lambda distance: np.exp((1 - distance) / 0.07))],
)
def test_accuracies_are_scikit_learns_with_cosine(k: int, name: str, weights: object) -> None:
    bank, bank_labels, queries, labels = problem()
    classifier = KNeighborsClassifier(k, metric="cosine", weights=weights)
    classifier.fit(bank.numpy(), bank_labels.numpy())
    expected = 100 * classifier.score(queries.numpy(), labels.numpy())
    ours = nearest_neighbours(bank, bank_labels, queries, labels)[name]
    assert 40 < expected < 95
    assert ours == pytest.approx(expected, abs=0.06)  # one query of 2100, for ties in rounding


def test_a_bank_smaller_than_twenty_votes_with_all_it_has() -> None:
    bank, queries = torch.eye(3), torch.tensor([[1.0, 0.1, 0.1], [0.1, 0.1, 1.0]])
    scores = nearest_neighbours(bank, torch.tensor([0, 1, 2]), queries, torch.tensor([0, 1]))
    assert scores == {"nn1": 50, "knn20": 50}


def test_the_bank_is_train_and_the_queries_are_val(shard_set: ShardSet) -> None:
    """A query that met itself would always be right: these features tell pictures apart."""
    extracts: dict[str, Extract] = {"pixels": pixel_features}
    found = neighbours_of(shard_set, extracts, OPTIONS)["pixels"]
    (bank, bank_labels), (queries, labels) = (
        features(shard_set.split(name), extracts, OPTIONS) for name in ("train", "val")
    )
    classifier = KNeighborsClassifier(1, metric="cosine")
    classifier.fit(bank["pixels"].numpy(), bank_labels.numpy())
    expected = 100 * classifier.score(queries["pixels"].numpy(), labels.numpy())
    assert found["nn1"] == pytest.approx(expected) and expected < 100


def test_pixel_features_are_the_picture_averaged_over_blocks() -> None:
    image = torch.rand(1, 3, 224, 224)
    patches = image.view(1, 3, 14, 16, 14, 16).permute(0, 2, 4, 1, 3, 5).reshape(1, 196, 768)
    ours = pixel_features(Tokens(patches, torch.arange(196)[None], 16, 14))
    expected = torch.nn.functional.avg_pool2d(image, 8)
    assert ours.shape == (1, math.prod(expected.shape))
    torch.testing.assert_close(ours.sort().values, expected.flatten(1).sort().values)
