"""Properties of every registered method."""

from dataclasses import fields

import pytest

from accelssl.errors import UserError
from accelssl.train.config.config import TrainConfig
from accelssl.train.methods import METHODS
from accelssl.train.methods.method import method_named


@pytest.mark.parametrize("name", METHODS)
def test_each_field_of_a_method_is_a_field_of_the_configuration_with_the_same_default(
    name: str,
) -> None:
    defaults = {field.name: field.default for field in fields(TrainConfig)}
    for field in fields(METHODS[name]):
        assert defaults[field.name] == field.default, field.name


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_registered_under_its_own_name_and_cuts_large_crops_of_its_size(
    name: str,
) -> None:
    method = method_named(name)()
    assert method.name == name
    assert {view.size for view in method.views()[:2]} == {method.size}


def test_an_unknown_method_is_refused_with_the_names_of_all() -> None:
    with pytest.raises(UserError, match="byol") as refused:
        method_named("byol")
    assert refused.value.remedy == "Use simclr, moco, dino."
