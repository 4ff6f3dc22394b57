"""A profile on disk: one JSON file, checked when it is read: a wrong one is an error and never a wrong figure."""

from __future__ import annotations

import json
import logging
import math
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from specbench.input import InputError, parse_json, read_file
from specbench.profile.analytic import find_pair
from specbench.profile.profile import MEASURED, PUBLISHED, Ceilings, ModelShape, Profile, ProfileError, RowGrid
from specbench.profile.surface import Fit, Floats, Grid
from specbench.records.store import write_atomically

LOG = logging.getLogger(__name__)
SCHEMA = 1
LARGEST = 1e18  # of any figure: sums and products of two stay finite
_FIX = "expected a file that specbench profile wrote, the name of a published fit, or a pair such as h100-8b"
_PUBLISHED = Path("results/profiles/published")
_PACKAGE = Path(__file__).resolve().parents[1]
_INSTALLED = _PACKAGE / "published" / "profiles"
_NAMES = ("device", "model", "engine", "dtype", "kind", "date")


def require_folder(folder: Path) -> None:
    """Make the folder and see that it can be written, before a profile is measured. Raises ProfileError."""
    if folder.suffix == ".json" and not folder.is_dir():
        raise ProfileError(f"folder {folder}: is named as a file; expected a folder, where the profile gets a name")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ProfileError(f"folder {folder}: cannot be written ({error.strerror}); choose another") from error


def write_profile(profile: Profile, folder: Path) -> Path:
    """``<folder>/<name>.json``, replaced in one step."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{profile.name}.json"
    write_atomically(path, json.dumps(_plain(profile), indent=1, ensure_ascii=False) + "\n")
    return path


def read_profile(path: Path) -> Profile:
    """Raises InputError naming the file and the entry that is wrong."""
    raw = parse_json(read_file(path, "profile ", _FIX), f"profile {path}", _FIX)
    try:
        return _profile(raw)
    except ProfileError as error:
        raise ProfileError(f"profile {path}: {error}") from error
    except (TypeError, ValueError) as error:  # an entry of another kind than expected
        raise ProfileError(f"profile {path}: {error!r}; expected the entries that specbench profile writes") from error


def open_profile(named: Path | str) -> Profile:
    """The profile of a file, of a pair such as 'h100-8b', or of a published fit's name without its folder and ending.

    Raises InputError.
    """
    pair = find_pair(str(named))
    if pair is not None:
        return pair
    checkout = (_PACKAGE.parent / _PUBLISHED).glob("*.json")  # wherever the command runs
    published = {path.stem: path for path in reversed([*published_profiles(), *checkout])}  # the nearest folder's
    if not Path(named).is_file() and str(named) in published:
        return read_profile(published[str(named)])
    return read_profile(Path(named))


def published_profiles() -> list[Path]:
    """The files of published fits: of the checkout that this folder is in, then of the installed package."""
    folders = [*(folder / _PUBLISHED for folder in (Path.cwd(), *Path.cwd().parents)), _INSTALLED]
    return [path for folder in folders for path in sorted(folder.glob("*.json"))]


def find_profile(
    folders: Iterable[Path], device: str, model: str, engine: str, dtype: str, parameters: int | None
) -> tuple[Path, Profile] | None:
    """The measured profile of this device, model, engine and dtype; the newest where several folders have one."""
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
    named = {key: getattr(profile, key) for key in (*_NAMES, "source", "parameters", "rounds")}
    return {
        "schema": SCHEMA,
        **named,
        "versions": dict(profile.versions),
        "fit": asdict(surface) if isinstance(surface, Fit) else None,
        "grid": {key: _rounded(value) for key, value in asdict(surface).items()} if isinstance(surface, Grid) else None,
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


def _profile(raw: Any) -> Profile:
    if not isinstance(raw, Mapping):
        raise ProfileError(f"holds {type(raw).__name__}; expected a JSON object")
    if raw.get("schema") != SCHEMA:
        raise ProfileError(f"schema {raw.get('schema')!r}; expected {SCHEMA}: measure it again")
    for key in _NAMES:
        if not isinstance(raw.get(key), str) or not raw[key]:
            raise ProfileError(f"{key}={raw.get(key)!r}; expected a text")
    if raw["kind"] not in (MEASURED, PUBLISHED):
        raise ProfileError(f"kind={raw['kind']!r}; expected {MEASURED} or {PUBLISHED}")
    if raw["kind"] == PUBLISHED and not raw.get("source"):
        raise ProfileError("source is empty; expected where the figures were published")
    surface, shape, ceilings, rows = _surface(raw), *(_part(raw, key) for key in ("shape", "ceilings", "rows"))
    buckets = _axis("buckets", raw["buckets"]).tolist() if raw.get("buckets") else []
    control: tuple[float, ...] = ()
    if raw.get("control"):
        control = tuple(_positive("control", each) for each in _axis("control", raw["control"], ordered=False).tolist())
        contexts = len(surface.contexts) if isinstance(surface, Grid) else 0
        if len(control) != contexts:
            raise ProfileError(f"control has {len(control)} figures; expected {contexts}, one a context")
    return Profile(
        **{key: raw[key] for key in _NAMES},
        surface=surface,
        source=str(raw.get("source") or ""),
        parameters=_whole("parameters", raw["parameters"]) if raw.get("parameters") is not None else None,
        rounds=_whole("rounds", raw["rounds"]) if raw.get("rounds") else 0,
        control=control,
        buckets=tuple(_whole("buckets", width) for width in buckets),
        ceilings=Ceilings(**{key: _positive(f"ceilings.{key}", ceilings[key]) for key in ceilings})
        if ceilings
        else None,
        shape=ModelShape(**{key: _whole(f"shape.{key}", value) for key, value in shape.items()}) if shape else None,
        rows=_rows(rows) if rows else None,
        versions={str(key): str(value) for key, value in _part(raw, "versions").items()},
    )


def _part(raw: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Returns the JSON object at ``key``; an empty one if the file lacks it. Raises if it is not an object."""
    found = raw.get(key)
    if found is not None and not isinstance(found, Mapping):
        raise ProfileError(f"{key} is {type(found).__name__}; expected an object, or null")
    return found or {}


def _surface(raw: Mapping[str, Any]) -> Grid | Fit:
    grid, fit = raw.get("grid"), raw.get("fit")
    if isinstance(grid, Mapping) == isinstance(fit, Mapping):
        raise ProfileError("has both or neither of `grid` and `fit`; expected one of them")
    if isinstance(fit, Mapping):
        values = {key: _number(f"fit.{key}", fit.get(key)) for key in Fit.__slots__}
        if values["base_ms"] <= 0 or min(values.values()) < 0:
            raise ProfileError(f"fit {values}; expected base_ms above 0 and nothing below")
        return Fit(**values)
    assert isinstance(grid, Mapping)
    fed, contexts = _axis("grid.fed", grid.get("fed")), _axis("grid.contexts", grid.get("contexts"))
    if fed[0] != 1:
        raise ProfileError(f"grid.fed starts at {fed[0]:g}; expected 1, which every speedup is against")
    if contexts[0] < 0:
        raise ProfileError(f"grid.contexts starts at {contexts[0]:g}; expected tokens")
    sizes = (len(contexts), len(fed))
    planes = {key: _floats(f"grid.{key}", grid.get(key)) for key in Grid.__slots__[2:]}
    for key, plane in planes.items():
        if plane.shape != sizes or not np.isfinite(plane).all():
            raise ProfileError(f"grid.{key} is {plane.shape}; expected {sizes} finite numbers: contexts, fed")
    if (planes["ms"] <= 0).any():
        raise ProfileError("grid.ms has times of 0 or less; expected milliseconds")
    for key in ("host_ms", "spread"):
        if (planes[key] < 0).any():
            raise ProfileError(f"grid.{key} has figures below 0; expected none")
    return Grid(fed, contexts, **planes)


def _rows(raw: Mapping[str, Any]) -> RowGrid:
    axes = {key: tuple(int(value) for value in _axis(f"rows.{key}", raw.get(key))) for key in ("k", "w", "contexts")}
    if (axes["k"][0], axes["w"][0]) != (1, 0):
        raise ProfileError("rows do not start at k 1, w 0; expected the single token, which every slowdown is against")
    sizes = tuple(len(axes[key]) for key in ("contexts", "k", "w"))
    values = _floats("rows.ms", raw.get("ms"))  # None becomes NaN: no draft has that shape
    if values.shape != sizes:
        raise ProfileError(f"rows.ms is {values.shape}; expected {sizes}: contexts, k, w")
    if (values <= 0).any() or np.isnan(values[:, 0, 0]).any():
        raise ProfileError("rows.ms has times of 0 or less, or none of one token alone; expected milliseconds")
    return RowGrid(**axes, ms=values)


def _axis(name: str, values: Any, ordered: bool = True) -> Floats:
    if not isinstance(values, list) or not values:
        raise ProfileError(f"{name}={values!r}; expected a list of numbers")
    found = np.array([_number(name, value) for value in values])
    if ordered and (np.diff(found) <= 0).any():
        raise ProfileError(f"{name}={values}; expected ascending numbers")
    return found


def _floats(name: str, values: Any) -> Floats:
    """Return nested lists as an array, NaN for None."""
    try:
        found = np.array(values, dtype=np.float64)
    except OverflowError as error:
        raise ProfileError(f"{name}: {error}; expected numbers of at most {LARGEST:g}") from error
    if (np.abs(found) > LARGEST).any():
        raise ProfileError(f"{name} has figures beyond {LARGEST:g}; expected milliseconds")
    return found


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LARGEST:
        text = repr(value)
        short = text if len(text) <= 40 else f"{text[:40]}..."
        raise ProfileError(f"{name}={short}; expected a number of at most {LARGEST:g}")
    return float(value)


def _whole(name: str, value: Any) -> int:
    if _positive(name, value) % 1:
        raise ProfileError(f"{name}={value!r}; expected a whole number")
    return int(value)


def _positive(name: str, value: Any) -> float:
    if _number(name, value) <= 0:
        raise ProfileError(f"{name}={value!r}; expected more than 0")
    return float(value)
