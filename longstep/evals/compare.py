"""Two results on the same tasks, pair by pair."""

from pathlib import Path
from typing import Any

import msgspec

from longstep.errors import UserError
from longstep.evals.records import FORMAT, Key, Record
from longstep.evals.summary import paired


class _Results(msgspec.Struct):
    longstep_eval: int
    model: str
    episodes: list[Record]


def _load(path: Path) -> _Results:
    try:
        results = msgspec.json.decode(path.read_bytes(), type=_Results)
    except OSError as e:
        raise UserError(f"{path}: cannot be read ({e.strerror}); expected the --json file of longstep eval run") from e
    except msgspec.DecodeError as e:
        raise UserError(f"{path}: not the result of longstep eval run ({e})") from e
    if results.longstep_eval != FORMAT:
        raise UserError(f"{path}: its format is {results.longstep_eval}, this program reads {FORMAT}; run it again")
    return results


def compare(a: Path, b: Path) -> dict[str, Any]:
    """b against a on identical (world, family, seed, effort), in all and by world and effort.

    A pair with an infrastructure error on either side is excluded from both and listed.
    """
    left, right = _load(a), _load(b)
    of_a = {record.key: record for record in left.episodes}
    of_b = {record.key: record for record in right.episodes}
    common = [key for key in of_a if key in of_b]
    if not common:
        raise UserError(f"{a} and {b} have no episode in common; run both on the same worlds, seeds and efforts")
    excluded = [key for key in common if not (of_a[key].counted and of_b[key].counted)]
    used = [key for key in common if of_a[key].counted and of_b[key].counted]

    def over(keys: list[Key]) -> dict[str, Any]:
        return paired([(of_a[key].solved, of_b[key].solved) for key in keys])

    groups = dict.fromkeys((key.world, key.effort) for key in used)
    return {
        "a": {"file": str(a), "model": left.model, "unpaired": len(of_a) - len(common)},
        "b": {"file": str(b), "model": right.model, "unpaired": len(of_b) - len(common)},
        "all": over(used),
        "groups": [
            {"world": world, "effort": effort, **over([k for k in used if (k.world, k.effort) == (world, effort)])}
            for world, effort in groups
        ],
        "only_a": [str(key) for key in used if of_a[key].solved and not of_b[key].solved],
        "only_b": [str(key) for key in used if of_b[key].solved and not of_a[key].solved],
        "excluded": [str(key) for key in excluded],
    }
