"""Selections: the classes that were named, a draw that packaging does not change, clear errors."""

import hashlib
import re
import tarfile
from pathlib import Path

import pytest

from accelssl.errors import UserError
from accelssl.shards.sources.ilsvrc2012 import (
    differences_from_imagenet,
    imagenet_classes,
    in100_wnids,
)
from accelssl.shards.sources.open_source import open_source
from accelssl.shards.sources.selection import Selection
from accelssl.shards.sources.source import Source

TENCH, SNAKE, ALP = "n01440764", "n01751748", "n09193705"


def folder_of(root: Path, wnids: list[str], images: int = 1) -> Path:
    for wnid in wnids:
        for split in ("train", "val"):
            folder = root / split / wnid
            folder.mkdir(parents=True)
            for i in range(images):
                (folder / f"{wnid}_{i}.JPEG").touch()
    return root


def names(source: Source, split: str = "train") -> list[str]:
    return [source.image(split, i).name for i in range(source.count(split))]


def refusal(source: Path, selection: Selection) -> str:
    with pytest.raises(UserError) as caught:
        open_source(source, selection=selection)
    assert caught.value.remedy
    return str(caught.value)


def test_labels_are_positions_among_the_chosen_classes(tmp_path: Path) -> None:
    folder_of(tmp_path, [TENCH, SNAKE, ALP], images=2)
    source = open_source(tmp_path, selection=Selection(classes=(ALP, SNAKE)))
    assert source.classes == (SNAKE, ALP)
    for split in ("train", "val"):
        found = [source.image(split, i) for i in range(source.count(split))]
        assert [(image.label, image.wnid) for image in found] == [
            (0, SNAKE),
            (0, SNAKE),
            (1, ALP),
            (1, ALP),
        ]
    assert source.options == {
        "subset": "classes",
        "subset_sha256": hashlib.sha256(f"{SNAKE}\n{ALP}".encode()).hexdigest(),
    }


def test_in100_takes_its_hundred_classes(tmp_path: Path) -> None:
    folder_of(tmp_path, sorted({*list(imagenet_classes())[:40], *in100_wnids()}))
    source = open_source(tmp_path, selection=Selection(subset="in100"))
    assert source.classes == in100_wnids()
    assert source.count("train") == source.count("val") == 100
    text = "\n".join(sorted(in100_wnids())).encode()
    assert source.options == {
        "subset": "in100",
        "subset_sha256": hashlib.sha256(text).hexdigest(),
    }


def test_a_file_names_classes_by_its_lines(tmp_path: Path) -> None:
    folder_of(tmp_path / "in", [TENCH, SNAKE, "n00cat # 1", "two words", "unwanted"])
    listed = tmp_path / "mine.txt"
    text = f"\ufeff# my classes\r\n\n  {SNAKE}  sea snake # poison\n{TENCH}\ttench\nn00cat # 1\n\n"
    listed.write_text(text + "#two\ntwo words\n", encoding="utf-8")
    source = open_source(tmp_path / "in", selection=Selection(subset=str(listed)))
    expected = sorted([SNAKE, TENCH, "n00cat # 1", "two words"])
    assert list(source.classes) == expected
    assert source.options == {
        "subset": "mine.txt",
        "subset_sha256": hashlib.sha256("\n".join(expected).encode()).hexdigest(),
    }


def test_without_a_selection_the_manifest_has_nothing_to_say(tmp_path: Path) -> None:
    assert open_source(folder_of(tmp_path, [TENCH])).options == {}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (f"{TENCH}\n{ALP}\n{TENCH} again\n", f"1 names more than once: {TENCH}."),
        ("# nothing\n\n", "names no class"),
        ("n99999999\nn99999998\n" + TENCH, "2 of the 3 .* not in the source: n99999998, n99999999"),
        ("n0144076\n", "n0144076"),
    ],
)
def test_names_that_are_repeated_or_missing_are_refused(
    tmp_path: Path, text: str, named: str
) -> None:
    folder_of(tmp_path / "in", [TENCH, ALP])
    (tmp_path / "list.txt").write_text(text)
    assert re.search(named, refusal(tmp_path / "in", Selection(subset=str(tmp_path / "list.txt"))))


def test_classes_that_are_repeated_or_missing_are_refused(tmp_path: Path) -> None:
    folder_of(tmp_path, [TENCH, ALP])
    assert f"more than once: {ALP}." in refusal(tmp_path, Selection(classes=(ALP, TENCH, ALP)))
    assert f"not in the source: {SNAKE}." in refusal(tmp_path, Selection(classes=(ALP, SNAKE)))
    assert "names no class" in refusal(tmp_path, Selection(classes=()))


def test_a_list_that_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    folder_of(tmp_path / "in", [TENCH])
    message = refusal(tmp_path / "in", Selection(subset="in1000"))
    assert "The list of classes in1000 cannot be read" in message
    assert "in100" in message
    assert "cannot be read" in refusal(tmp_path / "in", Selection(subset=str(tmp_path)))
    (tmp_path / "list.txt").write_bytes(b"\xff\xfe\xfd")
    list_path = str(tmp_path / "list.txt")
    assert "not UTF-8" in refusal(tmp_path / "in", Selection(subset=list_path))


def test_a_subset_and_classes_together_are_refused() -> None:
    with pytest.raises(UserError, match=rf"a subset \(in100\) and classes \({ALP}, {TENCH}\)"):
        Selection(subset="in100", classes=(ALP, TENCH))


@pytest.mark.parametrize("limit", [0, -3])
def test_a_limit_below_one_is_refused(limit: int) -> None:
    with pytest.raises(UserError, match=f"limit_per_class is {limit}"):
        Selection(limit_per_class=limit)


def test_val_without_images_of_the_chosen_classes_is_refused(tmp_path: Path) -> None:
    folder_of(tmp_path, [TENCH])
    (tmp_path / "train" / ALP).mkdir()
    (tmp_path / "train" / ALP / "0.JPEG").touch()
    assert "val has no images of the chosen classes" in refusal(tmp_path, Selection(classes=(ALP,)))


def test_an_empty_class_does_not_matter_unless_it_is_chosen(tmp_path: Path) -> None:
    folder_of(tmp_path, [TENCH])
    (tmp_path / "train" / ALP).mkdir()
    assert open_source(tmp_path, selection=Selection(classes=(TENCH,))).classes == (TENCH,)
    for chosen in ((TENCH, ALP), (ALP,)):
        assert f"{ALP} has no images" in refusal(tmp_path, Selection(classes=chosen))


def test_a_lower_limit_chooses_a_part_of_what_a_higher_one_chooses(tmp_path: Path) -> None:
    folder_of(tmp_path, [TENCH, ALP], images=60)
    every = names(open_source(tmp_path))
    chosen = {}
    for limit in (1, 10, 20, 60, 100):
        source = open_source(tmp_path, selection=Selection(limit_per_class=limit))
        found = names(source)
        for wnid in (TENCH, ALP):
            assert sum(name.startswith(wnid) for name in found) == min(limit, 60)
        assert found == [name for name in every if name in found]  # the order stays
        assert source.count("val") == source.count("train")
        assert source.options == {"limit_per_class": limit}
        chosen[limit] = set(found)
    assert chosen[1] < chosen[10] < chosen[20] < chosen[60] == chosen[100] == set(every)
    assert chosen[10] != set(every[:10] + every[60:70])  # a draw, not the first ones


def test_a_limit_draws_evenly(tmp_path: Path) -> None:
    folder_of(tmp_path, [f"c{n:03d}" for n in range(100)], images=4)
    found = names(open_source(tmp_path, selection=Selection(limit_per_class=1)))
    counts = [sum(name.endswith(f"_{i}.JPEG") for name in found) for i in range(4)]
    assert sum(counts) == 100
    assert min(counts) >= 10  # a fair draw gives less once in 6000 sets


def test_packaging_does_not_change_what_a_limit_chooses(tmp_path: Path) -> None:
    folder_of(tmp_path / "in", [TENCH, ALP], images=30)
    with tarfile.open(tmp_path / "train.tar", "w") as tar:
        for wnid in (ALP, TENCH):
            for i in reversed(range(30)):
                tar.addfile(tarfile.TarInfo(f"{wnid}_{i}_{wnid}.JPEG"))
    limited = Selection(limit_per_class=7)
    by_folder = open_source(tmp_path / "in", selection=limited)
    by_tar = open_source(tmp_path / "train.tar", selection=limited)
    assert names(by_folder) == names(by_tar)
    assert len(names(by_tar)) == 14


def complete(wnids: list[str]) -> dict[str, dict[str, int]]:
    facts = imagenet_classes()
    return {
        "train": {wnid: facts[wnid].train_images for wnid in wnids},
        "val": dict.fromkeys(wnids, 50),
    }


@pytest.mark.parametrize("limit", [None, 10, 1000])
def test_nothing_is_missing_of_a_complete_set(limit: int | None) -> None:
    whole, part = complete(list(imagenet_classes())), complete(list(in100_wnids()))
    assert differences_from_imagenet(whole, is_subset=False, limit_per_class=limit) is None
    assert differences_from_imagenet(part, is_subset=True, limit_per_class=limit) is None


def test_one_missing_image_is_noticed_also_of_a_subset() -> None:
    images = complete(list(in100_wnids()))
    wnid = in100_wnids()[41]
    total = sum(images["train"].values())
    images["train"][wnid] -= 1
    text = differences_from_imagenet(images, is_subset=True, limit_per_class=None)
    assert text is not None
    expected = imagenet_classes()[wnid].train_images
    assert f"{total - 1:,} of {total:,} train images" in text
    assert f"({wnid} has {expected - 1} of {expected})" in text
    assert "val" not in text
    assert "the whole of the chosen part of ImageNet-1k:" in text
    assert differences_from_imagenet(images, is_subset=True, limit_per_class=10) is None
    images["train"][wnid] = 9
    text = differences_from_imagenet(images, is_subset=True, limit_per_class=10)
    assert text is not None
    assert f"999 of 1,000 train images ({wnid} has 9 of 10)" in text


def test_a_surplus_in_one_class_does_not_hide_a_lack_in_another() -> None:
    images = complete(list(imagenet_classes()))
    images["val"][TENCH] += 1
    images["val"][ALP] -= 1
    text = differences_from_imagenet(images, is_subset=False, limit_per_class=None)
    assert text is not None
    assert f"50,000 of 50,000 val images ({TENCH} has 51 of 50)" in text
    assert "the whole of ImageNet-1k:" in text
    images["val"][ALP] = 4
    text = differences_from_imagenet(images, is_subset=False, limit_per_class=5)
    assert text is not None
    assert "the whole of the chosen part of ImageNet-1k:" in text


def test_a_missing_class_or_split_is_noticed() -> None:
    images = complete(list(imagenet_classes())[1:])
    text = differences_from_imagenet(images, is_subset=False, limit_per_class=None)
    assert text is not None
    for part in ("999 of 1,000 classes", "1,279,867 of 1,281,167 train", "49,950 of 50,000 val"):
        assert part in text
    images = complete(list(imagenet_classes()))
    del images["val"]
    text = differences_from_imagenet(images, is_subset=False, limit_per_class=None)
    assert text is not None
    assert "it has 0 of 50,000 val images." in text
