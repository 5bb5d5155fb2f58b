"""The interface of a method, and the registry of all methods. No torch.

A method is one file with a frozen dataclass of the settings that the method reads. To add one,
derive from Method, decorate the class with `register`, and import the file before the command line
runs. tests/train/methods/toy_byol.py is an example.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from accelssl.errors import UserError
from accelssl.pipeline.compression import Compression
from accelssl.pipeline.views import View
from accelssl.train.config.cost import Convention
from accelssl.train.config.flops import ModelShape
from accelssl.train.config.ranges import require, require_temperature
from accelssl.train.config.schedule import Schedule

if TYPE_CHECKING:
    from accelssl.model.objective import Objective


@dataclass(frozen=True)
class Method(ABC):
    """A method with its settings; the fields here are those that every method has.

    A field has the name and the default of TrainConfig's. What a step does with the objective is
    in model/objective.py, among it when a moving average follows (`forward`, `after_step`) and
    what the gradient analysis takes as negatives (`negatives`).
    """

    size: int = 240
    """Side of a large crop in pixels."""
    min_area: float = 0.08
    """Smallest large crop, as a share of the image."""
    temperature: float = 0.1
    """Temperature of the loss; of its queries where queries and keys differ."""
    head_hidden: int = 4096
    """Width of the head's hidden layers."""
    head_out: int = 256
    """Width of the head's output."""

    name: ClassVar[str]
    """Name on the command line (--algo) and in files."""
    title: ClassVar[str]
    """Name in pages and messages."""
    has_negatives: ClassVar[bool] = True
    """True if the loss compares an image with other images."""

    decays_vectors: ClassVar[bool] = False
    """True if the authors' weight decay is on biases and norms too."""
    only_here: ClassVar[tuple[str, ...]] = ()
    """Fields that a run of another method refuses unless they have their default."""

    @classmethod
    @abstractmethod
    def recipe(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings with which the authors train; `options` overrides some of them."""

    def check(self, schedule: Schedule) -> None:
        """Raise UserError for a setting that makes no sense. Derived classes check their own."""
        require_temperature("temperature", self.temperature, "best 0.1 to 0.2")
        require(0 < self.min_area <= 1, "min_area", self.min_area, "above 0 and at most 1")
        require(self.head_hidden >= 1, "head_hidden", self.head_hidden, "at least 1")
        require(self.head_out >= 1, "head_out", self.head_out, "at least 1")

    @property
    def label(self) -> str:
        """Return the name with the settings that change what a step computes, for messages."""
        return self.name

    @property
    def loss_note(self) -> str:
        """Return a sentence for the plot of the loss, or nothing."""
        return ""

    @abstractmethod
    def views(self) -> tuple[View, ...]:
        """Return the views of an image."""

    @abstractmethod
    def compressions(self, compression: Compression) -> tuple[Compression, ...]:
        """Return the compressions of a step, in the order of the objective's arguments.

        compression: the query's. Patches are equally large in query and key.
        """

    @abstractmethod
    def sample_cost(
        self, compression: Compression, convention: Convention = Convention.PATCHES196
    ) -> float:
        """Return the units that an image costs."""

    @abstractmethod
    def objective(self, model: str) -> Objective:
        """Build the module that computes the loss, for a model that timm names."""

    @abstractmethod
    def step_flops(self, shape: ModelShape, images: int, compression: Compression) -> int:
        """Count the operations of forward and backward for a batch of `images`."""

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """Take the method's fields from `settings`, and defaults for those that are missing."""
        names = (field.name for field in fields(cls))
        return cls(**{name: settings[name] for name in names if name in settings})

    @classmethod
    def own_settings(cls) -> tuple[str, ...]:
        """Return the names of the fields that not every method has."""
        shared = {field.name for field in fields(Method)}
        return tuple(field.name for field in fields(cls) if field.name not in shared)


METHODS: dict[str, type[Method]] = {}
"""All methods by name."""

_Registered = TypeVar("_Registered", bound=Method)


def register(method: type[_Registered]) -> type[_Registered]:
    """Add a class to METHODS under its name, and return the class."""
    METHODS[method.name] = method
    return method


def method_named(name: str) -> type[Method]:
    """Look up a method. Raise UserError for an unknown name."""
    if name not in METHODS:
        raise UserError(f"The algorithm {name!r} is not known.", f"Use {', '.join(METHODS)}.")
    return METHODS[name]
