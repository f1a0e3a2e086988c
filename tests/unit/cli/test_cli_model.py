"""`pando model`: output and one-line errors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from common.base.model_config import ModelError
from pando.cli.model import app, packaged_gguf
from tests.support.tiny_vocab import tiny_vocab, write_tokenizer

CONFIG = {
    "model_type": "qwen3",
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 2048,
    "rope_scaling": {"rope_type": "yarn", "factor": 4.0},
    "eos_token_id": [0, 1],
    "torch_dtype": "bfloat16",
}


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.stdout, result.stderr


def fails(*arguments: str) -> str:
    """The one line on standard error of a command that must exit with 2."""
    code, out, line = run(*arguments)
    assert (code, out, line.count("\n")) == (2, "", 1)
    return line


def test_info(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    write_tokenizer(tmp_path, tiny_vocab())
    code, out, _ = run("info", str(tmp_path))
    rows = {line[:22].strip(): line[22:] for line in out.splitlines()}
    assert code == 0
    assert rows["architecture"] == "qwen3"
    assert rows["context"] == "2,048 tokens (RoPE theta 10000, yarn x 4)"
    assert rows["KV bytes per token"] == f"{2 * 2 * 2 * 16 * 2} in bfloat16"
    assert rows["end tokens"] == "0, 1"
    assert rows["chat template"] == "yes"
    assert rows["attention heads"] == "4 (2 KV) x 16"


def test_info_of_what_is_no_model(tmp_path: Path) -> None:
    assert "does not exist" in fails("info", str(tmp_path / "x"))
    assert "config.json is missing" in fails("info", str(tmp_path))
    (tmp_path / "config.json").write_text("{\n")
    assert "not valid JSON" in fails("info", str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    assert "tokenizer.json is missing" in fails("info", str(tmp_path))


def test_import_needs_one_source(tmp_path: Path) -> None:
    out = str(tmp_path / "m")
    assert "either --gguf" in fails("import", "--out", out)
    assert "either --gguf" in fails("import", "--out", out, "--gguf", "a", "--package", "b")


def test_import_of_what_is_no_gguf(tmp_path: Path) -> None:
    file = tmp_path / "a.gguf"
    out = str(tmp_path / "m")
    assert "a.gguf" in fails("import", "--gguf", str(file), "--out", out)
    file.write_bytes(b"GGUF")
    assert "no readable GGUF" in fails("import", "--gguf", str(file), "--out", out)
    assert "no_such_package" in fails("import", "--package", "no_such_package", "--out", out)


def test_packaged_gguf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "pando_test_weights"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise RuntimeError('must not be imported')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModelError, match="holds 0 GGUF files"):
        packaged_gguf("pando_test_weights")
    (folder / "m.gguf").touch()
    assert packaged_gguf("pando_test_weights") == folder / "m.gguf"


def test_the_command_line_stays_light() -> None:
    probe = "import sys, pando.cli.model; print({'torch', 'transformers', 'gguf', 'grpc'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "set()"
