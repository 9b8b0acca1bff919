"""What all specs share: strictness, identity, the types of their fields."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

Slug = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")]
Dtype = Literal["fp32", "bf16", "fp16"]
Positive = Annotated[int, Field(gt=0)]
NonNegative = Annotated[int, Field(ge=0)]


DTYPE_BYTES: dict[str, int] = {"fp32": 4, "bf16": 2, "fp16": 2}


class Spec(BaseModel):
    """Base of every spec: unknown keys are errors, values never change after validation.

    `notes` names the fields that describe but don't influence a run (titles, prices, sources); they
    stay out of a cell's identity, so that a corrected price doesn't repeat a finished run.
    `later` names fields that came after the first results: at their default they stay out too, so
    that the cells of those results keep their ids.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    notes: ClassVar[frozenset[str]] = frozenset()
    later: ClassVar[frozenset[str]] = frozenset()

    def identity(self) -> dict[str, Any]:
        """The fields that decide what a run does, as plain JSON values."""
        return {
            name: _identity(getattr(self, name))
            for name, field in type(self).model_fields.items()
            if name not in self.notes
            and not (name in self.later and getattr(self, name) == field.default)
        }


def _identity(value: Any) -> Any:
    if isinstance(value, Spec):
        return value.identity()
    if isinstance(value, (list, tuple)):
        return [_identity(item) for item in value]
    if isinstance(value, dict):
        return {key: _identity(item) for key, item in value.items()}
    return value
