import numpy as np

from accelssl.pipeline.draws.philox import Purpose, draw, philox4x32, uniform


def words(*values: int) -> tuple[np.ndarray, ...]:
    return tuple(np.array([value], dtype=np.uint64) for value in values)


def test_philox_gives_the_published_answers() -> None:
    """The vectors are the known answers of the authors' Random123 distribution."""
    ones = 0xFFFFFFFF
    for counter, key, answer in [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ones,) * 4, (ones,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ]:
        out = philox4x32(words(*counter), key)  # type: ignore[arg-type]
        assert tuple(int(word[0]) for word in out) == answer


def test_a_sample_draws_the_same_in_any_batch() -> None:
    together = draw(1, 2, np.array([7, 9, 11]), 0, Purpose.CROP, 10)
    alone = draw(1, 2, np.array([9]), 0, Purpose.CROP, 10)
    assert (together[1] == alone[0]).all()


def test_seed_epoch_sample_view_and_purpose_each_change_the_draw() -> None:
    def first(seed: int, epoch: int, sample: int, view: int, purpose: Purpose) -> bytes:
        return draw(seed, epoch, np.array([sample]), view, purpose, 4).tobytes()

    draws = {
        first(0, 0, 0, 0, Purpose.CROP),
        first(1, 0, 0, 0, Purpose.CROP),
        first(0, 1, 0, 0, Purpose.CROP),
        first(0, 0, 1, 0, Purpose.CROP),
        first(0, 0, 2**32, 0, Purpose.CROP),
        first(0, 0, 0, 1, Purpose.CROP),
        first(0, 0, 0, 0, Purpose.DROP),
        first(0, 0, 0, 0, Purpose.ROLES),
    }
    assert len(draws) == 8


def test_uniform_numbers_are_uniform_and_below_one() -> None:
    u = uniform(draw(3, 0, np.arange(2000), 0, Purpose.AUGMENT, 8))
    assert u.min() >= 0 and u.max() < 1
    counts = np.histogram(u, bins=20, range=(0, 1))[0]
    chi2 = ((counts - u.size / 20) ** 2 / (u.size / 20)).sum()
    assert chi2 < 45  # 19 degrees of freedom: p < .001
    assert uniform(np.array([2**32 - 1], dtype=np.uint32))[0] < 1
