"""Reads and writes latency profiles as JSON files; a file with a wrong entry is an error that names
the entry.
"""

from __future__ import annotations

import json
import logging
import math
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from specbench.input import InputError, parse_as, read_file, refuse_foreign
from specbench.profile.analytic import find_pair
from specbench.profile.profile import (
    MEASURED,
    PUBLISHED,
    Ceilings,
    Fit,
    Floats,
    Grid,
    ModelShape,
    Positive,
    Profile,
    RowGrid,
    Size,
    Whole,
)
from specbench.records.record import Amount
from specbench.records.store import write_atomically

LOG = logging.getLogger(__name__)
_FIX = (
    "expected a file that specbench profile wrote, the name of a published fit, or a pair such as"
    " h100-8b"
)
_PUBLISHED = Path("results/profiles/published")
_PACKAGE = Path(__file__).resolve().parents[1]
_INSTALLED = _PACKAGE / "published" / "profiles"
_PLAIN = ("device", "model", "engine", "dtype", "kind", "date", "source", "parameters", "rounds")


def require_folder(folder: Path) -> None:
    """Make the folder and see that it can be written, before a profile is measured. Raises
    InputError.
    """
    if folder.suffix == ".json" and not folder.is_dir():
        raise InputError(
            f"folder {folder}: is named as a file; expected a folder, where the profile gets a name"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(
            f"folder {folder}: cannot be written ({error.strerror}); choose another"
        ) from error


def write_profile(profile: Profile, folder: Path) -> Path:
    """``<folder>/<name>.json``, replaced in one step."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{profile.name}.json"
    refuse_foreign(path, b'"schema"', "move it, or give --out another folder")
    write_atomically(path, json.dumps(_plain(profile), indent=1, ensure_ascii=False) + "\n")
    return path


def read_profile(path: Path) -> Profile:
    """Returns the profile in a file. Raises InputError, which names the file and the wrong
    entry.
    """
    found = parse_as(_File, read_file(path, "profile ", _FIX), f"profile {path}", _FIX)
    if (found.grid is None) == (found.fit is None):
        raise InputError(
            f"profile {path}: has both or neither of grid and fit; expected one of them"
        )
    if found.kind == PUBLISHED and not found.source:
        raise InputError(
            f"profile {path}: source is empty; expected where the figures were published"
        )
    contexts = len(found.grid.contexts) if found.grid else 0
    if found.control and len(found.control) != contexts:
        raise InputError(
            f"profile {path}: control has {len(found.control)} figures; expected {contexts}, one"
            " per context"
        )
    rows = None
    if given := found.rows:
        rows = RowGrid(
            tuple(given.k),
            tuple(given.w),
            tuple(given.contexts),
            np.array(given.ms, dtype=np.float64),
        )
    return Profile(
        **{key: getattr(found, key) for key in (*_PLAIN, "versions", "ceilings", "shape")},
        surface=found.fit
        or Grid(**{key: np.array(values, dtype=np.float64) for key, values in found.grid or ()}),
        control=tuple(found.control),
        buckets=tuple(found.buckets),
        rows=rows,
    )


def open_profile(named: Path | str) -> Profile:
    """The profile of a file, of a pair such as 'h100-8b', or of a published fit's name without its
    folder and ending.

    Raises InputError.
    """
    pair = find_pair(str(named))
    if pair is not None:
        return pair
    checkout = (_PACKAGE.parent / _PUBLISHED).glob("*.json")  # wherever the command runs
    # the nearest folder's
    published = {path.stem: path for path in reversed([*published_profiles(), *checkout])}
    if not Path(named).is_file() and str(named) in published:
        return read_profile(published[str(named)])
    return read_profile(Path(named))


def published_profiles() -> list[Path]:
    """The files of published fits: of the checkout that this folder is in, then of the installed
    package.
    """
    folders = [*(folder / _PUBLISHED for folder in (Path.cwd(), *Path.cwd().parents)), _INSTALLED]
    return [path for folder in folders for path in sorted(folder.glob("*.json"))]


def find_profile(
    folders: Iterable[Path],
    device: str,
    model: str,
    engine: str,
    dtype: str,
    parameters: int | None,
) -> tuple[Path, Profile] | None:
    """The measured profile of this device, model, engine and dtype; the newest if several folders
    have one.
    """
    found: list[tuple[str, Path, Profile]] = []
    for path in sorted({path.resolve() for folder in folders for path in folder.glob("*.json")}):
        try:
            profile = read_profile(path)
        except InputError as error:  # a damaged file next to the right one is not a reason to stop
            LOG.warning("passed over: %s", error)
            continue
        own = (profile.device, profile.model, profile.engine, profile.dtype, profile.parameters)
        if profile.kind == MEASURED and own == (device, model, engine, dtype, parameters):
            found.append((profile.date, path, profile))
    if not found:
        return None
    _, path, profile = max(found, key=lambda entry: entry[:2])
    return path, profile


def _plain(profile: Profile) -> dict[str, Any]:
    surface = profile.surface
    return {
        "schema": 1,
        **{key: getattr(profile, key) for key in _PLAIN},
        "versions": dict(profile.versions),
        "fit": asdict(surface) if isinstance(surface, Fit) else None,
        "grid": (
            {key: _rounded(value) for key, value in asdict(surface).items()}
            if isinstance(surface, Grid)
            else None
        ),
        "control": _rounded(np.asarray(profile.control)),
        "buckets": list(profile.buckets),
        "ceilings": asdict(profile.ceilings) if profile.ceilings else None,
        "shape": asdict(profile.shape) if profile.shape else None,
        "rows": asdict(profile.rows) | {"ms": _rounded(profile.rows.ms)} if profile.rows else None,
    }


def _rounded(values: Floats) -> Any:
    """Return nested lists with six digits after the point, None for a blank."""
    if values.ndim == 0:
        return None if math.isnan(float(values)) else round(float(values), 6)
    return [_rounded(np.asarray(value)) for value in values]


def _require(fits: bool, expected: str) -> None:
    if not fits:
        raise PydanticCustomError("profile", "Input should have {expected}", {"expected": expected})


def _axis(first: int | None = None) -> AfterValidator:
    """A check of ascending numbers. first: the number that must be the first one, if any."""

    def check(values: list[float]) -> list[float]:
        _require(values == sorted(set(values)), "ascending numbers")
        _require(
            first is None or values[:1] == [first],
            f"{first} as the first number, for the single token",
        )
        return values

    return AfterValidator(check)


def _check_sizes(values: list[Any], given: Mapping[str, Any], *axes: str) -> None:
    sizes = tuple(len(given.get(axis, ())) for axis in axes)
    _require(np.shape(values) == sizes, f"{' x '.join(map(str, sizes))} numbers: {', '.join(axes)}")


Text = Annotated[str, Field(min_length=1)]
_Number = Annotated[int, Field(ge=0, le=10**18), Whole]


class _Grid(BaseModel):
    """The entry ``grid``."""

    fed: Annotated[list[Positive], _axis(1)]
    contexts: Annotated[list[Amount], Field(min_length=1), _axis()]
    ms: list[list[Positive]]
    host_ms: list[list[Amount]]
    spread: list[list[Amount]]

    @field_validator("ms", "host_ms", "spread")
    @classmethod
    def _check(cls, values: list[Any], info: ValidationInfo) -> list[Any]:
        _check_sizes(values, info.data, "contexts", "fed")
        return values


class _Rows(BaseModel):
    """The entry ``rows``. ms: null if no draft has that shape."""

    k: Annotated[list[Size], _axis(1)]
    w: Annotated[list[_Number], _axis(0)]
    contexts: Annotated[list[_Number], Field(min_length=1), _axis()]
    ms: list[list[list[Positive | None]]]

    @field_validator("ms")
    @classmethod
    def _check(cls, values: list[Any], info: ValidationInfo) -> list[Any]:
        _check_sizes(values, info.data, "contexts", "k", "w")
        _require(
            all(plane[0][0] for plane in values), "a time of the single token for every context"
        )
        return values


class _File(BaseModel):
    """The entries of a profile's file. Unknown entries are ignored."""

    schema_: Literal[1] = Field(alias="schema")
    device: Text
    model: Text
    engine: Text
    dtype: Text
    kind: Literal["measured", "published"]
    date: Text
    source: str = ""
    parameters: Size | None = None
    rounds: _Number = 0
    versions: dict[str, str] = {}
    fit: Fit | None = None
    grid: _Grid | None = None
    control: list[Positive] = []
    buckets: Annotated[list[Size], _axis()] = []
    ceilings: Ceilings | None = None
    shape: ModelShape | None = None
    rows: _Rows | None = None

    @model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, given: Any) -> Any:
        """An entry that is null or has no keys is absent."""
        return (
            {key: value for key, value in given.items() if value is not None and value != {}}
            if isinstance(given, dict)
            else given
        )
