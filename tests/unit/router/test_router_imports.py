"""The router needs no engine: at run time a model's tokenizer and template are all it reads."""

from __future__ import annotations

import subprocess
import sys


def test_no_model_library_is_imported() -> None:
    probe = "print([m for m in ('torch', 'transformers', 'numpy') if m in sys.modules])"
    code = f"import sys, services.router.__main__; {probe}"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
