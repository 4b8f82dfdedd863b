"""What every group of settings is: frozen, documented, checked once at birth, varied by a copy."""

from collections.abc import Mapping
from typing import Any, Self, TypeVar, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_core import PydanticCustomError

from memloc.errors import SettingsError, lookup


class Settings(BaseModel):
    """Frozen; unknown keys are refused; the docstring under a field is its description."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False
    )

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Pydantic takes `true` for 1, but whoever writes `epochs: yes` means something else."""
        kind = cls.model_fields[str(info.field_name)].annotation
        given = value if isinstance(value, list | tuple) else [value]
        if bool not in (kind, *get_args(kind)) and any(isinstance(v, bool) for v in given):
            said = "Input should be a number or a name, not true or false"
            raise PydanticCustomError("truth", said)
        return value

    def flat(self) -> dict[str, Any]:
        """Every setting under its dotted name, e.g. `finetune.epochs`."""
        rows: dict[str, Any] = {}
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, Settings):
                rows |= {f"{name}.{key}": inner for key, inner in value.flat().items()}
            else:
                rows[name] = value
        return rows

    def replace(self, changes: Mapping[str, Any]) -> Self:
        """A copy with other values under dotted names, checked like any other."""
        tree = self.model_dump()
        known = self.flat()
        for dotted, value in changes.items():
            lookup("setting", dotted, known)
            *groups, leaf = dotted.split(".")
            place = tree
            for group in groups:
                place = place[group]
            place[leaf] = value
        return checked(type(self), tree)


S = TypeVar("S", bound=Settings)


def checked(kind: type[S], values: Mapping[str, Any]) -> S:
    """Settings of a kind from plain values; what is wrong is said in one sentence."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        raise SettingsError(f"Setting {name} is {first['input']!r}: {first['msg']}.") from None


def paper(default: Any, where: str, **limits: Any) -> Any:
    """A constant that the paper states, and where."""
    return Field(default, json_schema_extra={"source": f"paper, {where}"}, **limits)


def published(default: Any, **limits: Any) -> Any:
    """A constant on which the text is silent: the published code's."""
    return Field(default, json_schema_extra={"source": "published code"}, **limits)


def ours(default: Any, **limits: Any) -> Any:
    """A constant that is our choice."""
    return Field(default, json_schema_extra={"source": "our choice"}, **limits)
