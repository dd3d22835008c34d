"""A tool for GradBench that says what its arguments make it say: `python fake_tool.py BEHAVIOUR`.

It defines `lse` alone. In each message it says that its first run took 100 s, and the n-th one after that n seconds.
"""

from __future__ import annotations

import json
import math
import sys
from typing import Any


def evaluated(behaviour: str, message: dict[str, Any]) -> dict[str, Any]:
    if behaviour == "fails":
        return {"success": False, "error": "Traceback\nno such thing"}
    output = math.log(sum(math.exp(x) for x in message["input"]["x"])) + (0.001 if behaviour == "is wrong" else 0.0)
    runs = 1 if behaviour == "runs once" else message["input"]["min_runs"]
    seconds = [100 if n == 0 else n for n in range(runs)]
    timings = [{"name": "prepare", "nanoseconds": 10**12}]
    return {
        "success": True,
        "output": output,
        "timings": timings + [{"name": "evaluate", "nanoseconds": s * 10**9} for s in seconds],
    }


def answer(behaviour: str, message: dict[str, Any]) -> dict[str, Any]:
    kind = message["kind"]
    if kind == "define":
        is_known = message["module"] == "lse"
        return {"success": True} if is_known else {"success": False, "error": "no rule for it"}
    return evaluated(behaviour, message) if kind == "evaluate" else {}


def main() -> None:
    behaviour = sys.argv[1]
    for line in sys.stdin:
        message = json.loads(line)
        if message["kind"] == "evaluate" and behaviour == "ends":
            sys.exit(3)
        number = message["id"] + (10 if message["kind"] == "evaluate" and behaviour == "answers others" else 0)
        print(json.dumps({"id": number} | answer(behaviour, message)), flush=True)


if __name__ == "__main__":
    main()
