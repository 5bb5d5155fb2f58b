"""The definition of the fused op makes the same tokens of the same picture."""

import numpy as np

from tests.golden.entry import CHANGED, DATA, tokens


def test_the_tokens_of_a_picture_are_unchanged() -> None:
    found = tokens()
    with np.load(DATA / "tokens.npz") as file:
        pinned = dict(file)
    assert found.keys() == pinned.keys() == {"p16", "p30", "p48"}
    for name, values in pinned.items():
        np.testing.assert_allclose(
            found[name],
            values,
            rtol=0,
            atol=1e-6 * np.abs(values).max(),
            err_msg=CHANGED.format(f"The tokens at {name}"),
        )
