import torch

from accelssl.pipeline.loader import Tokens
from accelssl.train.graph_inputs import fill, places_like, shapes


def view(kept: int, p: int = 48) -> Tokens:
    return Tokens(torch.randn(2, kept, 768), torch.randint(0, 25, (2, kept)), p, 240 // p)


def test_places_take_what_views_hold_and_nothing_of_the_places_before() -> None:
    first, second = [view(5), view(25)], [view(5), view(25)]
    places = places_like(first)
    memory = [place.values_NLV.data_ptr() for place in places]
    for views in (first, second):
        fill(places, views)
        for place, held in zip(places, views, strict=True):
            assert torch.equal(place.values_NLV, held.values_NLV)
            assert torch.equal(place.keep_idx_NL, held.keep_idx_NL)
            assert (place.p, place.grid) == (held.p, held.grid)
            assert place.keep_idx_NL.dtype == held.keep_idx_NL.dtype
    assert [place.values_NLV.data_ptr() for place in places] == memory
    assert shapes(places) == shapes(second)


def test_one_graph_reads_no_views_of_other_lengths_or_patches() -> None:
    alike = shapes([view(5)])
    assert alike == shapes([view(5)])
    assert alike not in (shapes([view(6)]), shapes([view(5, p=24)]), shapes([view(5), view(5)]))
