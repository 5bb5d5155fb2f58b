"""An index is parsed if it fits its tar, and refused otherwise."""

import pytest

from accelssl.shards.shard_index import parse_index

GOOD = "v1.2 1\njpg 512 600 0.jpg cls 2048 1 0.cls json 3072 9 0.json\n"


def test_a_correct_index_is_parsed() -> None:
    index = parse_index(GOOD.encode(), samples=1, tar_bytes=10240)
    assert index.offset_NC.tolist() == [[512, 2048, 3072]]
    assert index.size_bytes_NC.tolist() == [[600, 1, 9]]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("v1.2", "v1.1"),
        ("v1.2 1", "v1.2 2"),
        ("cls", "txt"),
        ("jpg 512", "jpg 0"),
        ("jpg 512", "jpg 513"),
        ("2048", "1024"),  # inside the image
        ("9 0.json", "9000 0.json"),  # beyond the tar
        ("9 0.json", "-9 0.json"),
        ("9 0.json", "nine 0.json"),
        (" json 3072 9 0.json", ""),
        ("512", "+512"),
        ("2048", "2_048"),
        ("2048", "\u0662048"),  # an Arabic digit
        ("2048", "2048.0"),
        ("2048", str(2**63)),
        ("2048", str(2**63 - 512)),
        ("2048", str(2**64 + 2048)),
        ("2048", "9" * 5000),  # more digits than int() takes
        ("600", str(2**63 - 512)),  # offset and size overflow together alone
    ],
)
def test_an_index_that_does_not_fit_its_tar_is_refused(old: str, new: str) -> None:
    assert old in GOOD
    with pytest.raises(ValueError):
        parse_index(GOOD.replace(old, new).encode(), samples=1, tar_bytes=10240)


@pytest.mark.parametrize("huge", [2**63 - 1, 2**70])
def test_no_number_is_too_large_to_be_refused(huge: int) -> None:
    text = GOOD.replace("9 0.json", f"{huge} 0.json").encode()
    with pytest.raises(ValueError, match="do not fit the tar"):
        parse_index(text, samples=1, tar_bytes=2**80)
