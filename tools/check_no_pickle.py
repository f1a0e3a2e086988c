"""Nothing in Pando unpickles: find imports and calls that could, by syntax.

Refused in product code (pando, common, services, bench, tools): the modules pickle, cPickle, dill, cloudpickle, shelve,
marshal and joblib; `torch.load` without `weights_only=True`; `numpy.load` with `allow_pickle=True`; `yaml.load`.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("pando", "common", "services", "bench", "tools")
MODULES = frozenset({"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"})


def find(source: str) -> Iterator[tuple[int, str]]:
    """Line and reason of everything in a module's source that may unpickle."""
    for node in ast.walk(ast.parse(source)):
        reason = _import(node) or _call(node)
        if reason:
            assert isinstance(node, ast.stmt | ast.expr)
            yield node.lineno, reason


def _import(node: ast.AST) -> str:
    names: list[str] = []
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        names = [node.module or ""]
    bad = [name for name in names if name.partition(".")[0] in MODULES]
    return f"imports {bad[0]}" if bad else ""


def _call(node: ast.AST) -> str:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != "load":
        return ""
    owner = ast.unparse(node.func.value)
    given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
    if owner == "torch" and given.get("weights_only") != "True":
        return "torch.load without weights_only=True"
    if owner in ("np", "numpy") and given.get("allow_pickle", "False") != "False":
        return "numpy.load with allow_pickle"
    return "yaml.load (use safe_load)" if owner == "yaml" else ""


def main() -> int:
    """Check the product's folders; exit status 1 with one line per finding."""
    found = 0
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for line, reason in find(path.read_text("utf-8")):
                print(f"{path.relative_to(ROOT)}:{line}: {reason}")
                found += 1
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
