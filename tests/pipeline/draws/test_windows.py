import numpy as np
import torch
from torchvision.transforms import RandomResizedCrop

from accelssl.pipeline.draws.windows import central_windows, random_windows
from accelssl.pipeline.views import View

VIEW = View("v", 240, scale=(0.08, 1.0))


def sizes(count: int, height: int, width: int) -> np.ndarray:
    return np.tile(np.array([[height, width]], dtype=np.int64), (count, 1))


def test_windows_lie_inside_the_image_on_whole_pixels() -> None:
    rng = np.random.default_rng(0)
    shapes = rng.integers(1, 700, (3000, 2))
    windows = random_windows(VIEW, 0, 0, 0, np.arange(3000), shapes)
    top, left, bottom, right = windows.T
    assert (windows == np.rint(windows)).all()
    assert (top >= 0).all() and (left >= 0).all()
    assert (bottom <= shapes[:, 0]).all() and (right <= shapes[:, 1]).all()
    assert (bottom > top).all() and (right > left).all()


def test_areas_aspects_and_places_are_distributed_as_torchvision_draws_them() -> None:
    count = 4000
    ours = random_windows(VIEW, 0, 0, 0, np.arange(count), sizes(count, 375, 500))
    torch.manual_seed(0)
    image = torch.empty(3, 375, 500)
    drawn = [RandomResizedCrop.get_params(image, [0.08, 1], [3 / 4, 4 / 3]) for _ in range(count)]
    theirs = np.array([(i, j, i + h, j + w) for i, j, h, w in drawn])

    def quantities(w: np.ndarray) -> list[np.ndarray]:
        height, width = w[:, 2] - w[:, 0], w[:, 3] - w[:, 1]
        return [height * width, np.log(width / height), w[:, 0], w[:, 1]]

    for a, b in zip(quantities(ours), quantities(theirs), strict=True):
        grid = np.sort(np.concatenate([a, b]))
        cdf_a = np.searchsorted(np.sort(a), grid, side="right") / count
        cdf_b = np.searchsorted(np.sort(b), grid, side="right") / count
        # Kolmogorov-Smirnov distance; 1.95 sqrt(2 / n) is p = .001.
        assert np.abs(cdf_a - cdf_b).max() < 1.95 * np.sqrt(2 / count)


def test_an_image_no_window_fits_gets_torchvisions_central_one() -> None:
    whole = View("v", 240, scale=(1.0, 1.0), ratio=(1.0, 1.0))
    window = random_windows(whole, 0, 0, 0, np.arange(1), sizes(1, 100, 301))[0]
    i, j, h, w = RandomResizedCrop.get_params(torch.empty(3, 100, 301), [1, 1], [1, 1])
    assert window.tolist() == [i, j, i + h, j + w]


def test_a_sample_has_the_same_window_in_any_batch_and_another_in_its_other_view() -> None:
    ids, shape = np.array([3, 5, 8]), sizes(3, 300, 400)
    together = random_windows(VIEW, 0, 1, 2, ids, shape)
    assert (together[1] == random_windows(VIEW, 0, 1, 2, ids[1:2], shape[:1])[0]).all()
    assert (together != random_windows(VIEW, 1, 1, 2, ids, shape)).any(axis=1).all()


def test_evaluation_shows_the_centre_that_resize_256_and_crop_224_show() -> None:
    window = central_windows(sizes(1, 512, 1024))[0]
    assert window.tolist() == [32, 288, 480, 736]
