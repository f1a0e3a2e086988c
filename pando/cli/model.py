"""`pando model`: import a GGUF, and tell what a model directory holds.

Every failure is one line on standard error and exit status 2. torch is imported only while importing a GGUF.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from common.base.errors import PandoError
from common.base.model_config import ModelConfig, ModelError, load_model_config
from common.base.model_tensors import num_parameters
from common.tokenizer.chat_template import ChatTemplate
from common.tokenizer.tokenizer import Tokenizer

app = typer.Typer(name="model", help="Import and inspect model directories.", no_args_is_help=True)

_ELEMENT_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


@app.command("import")
def import_model(
    out: Annotated[Path, typer.Option(help="Model directory to make.")],
    gguf: Annotated[Path | None, typer.Option(help="GGUF file to convert.")] = None,
    package: Annotated[str | None, typer.Option(help="Installed Python package that holds the GGUF file.")] = None,
) -> None:
    """Convert a GGUF file to a Hugging Face-style model directory (bfloat16 safetensors)."""
    _exit_2_on_error(lambda: _import(out, gguf, package))


@app.command()
def info(path: Annotated[Path, typer.Argument(help="Model directory.")]) -> None:
    """Show architecture, sizes, dtype, context and KV bytes per token of a model directory."""
    _exit_2_on_error(lambda: _print_info(path))


def packaged_gguf(package: str) -> Path:
    """Return the only GGUF file inside the installed package `package`, without importing it.

    Raises:
        ModelError: no such package, or not exactly one GGUF file in it.
    """
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise ModelError(f"Python package {package!r} is not installed")
    files = sorted(file for folder in spec.submodule_search_locations for file in Path(folder).rglob("*.gguf"))
    if len(files) != 1:
        raise ModelError(f"Python package {package!r} holds {len(files)} GGUF files, not one")
    return files[0]


def _exit_2_on_error(action: Callable[[], None]) -> None:
    try:
        action()
    except PandoError as error:
        line = " ".join(error.message.split())
        print(f"error: {line}", file=sys.stderr)
        raise typer.Exit(2) from None


def _import(out: Path, gguf: Path | None, package: str | None) -> None:
    if (gguf is None) == (package is None):
        raise ModelError("give either --gguf FILE or --package NAME")
    source = gguf if gguf is not None else packaged_gguf(package or "")
    try:
        from common.engine.gguf_import import import_gguf  # noqa: PLC0415 - imports torch
    except ImportError as error:
        raise ModelError(f"importing needs the engine extra, pip install 'pando[engine,import]': {error}") from error
    done = import_gguf(source, out)
    print(f"imported {source.name} into {out}" if done else f"{out} is already imported from {source.name}")


def _print_info(path: Path) -> None:
    config = load_model_config(path)
    tokenizer = Tokenizer.load(path)
    has_template = ChatTemplate.load(path) is not None
    for name, value in _rows(path, config, tokenizer.vocab_size, has_template):
        print(f"{name:<22}{value}")


def _rows(path: Path, config: ModelConfig, tokenizer_size: int, has_template: bool) -> list[tuple[str, str]]:
    rope = config.rope
    scaling = "" if rope.kind == "default" else f", {rope.kind} x {rope.factor:g}"
    kv_bytes = config.kv_bytes_per_token(_ELEMENT_BYTES[config.dtype])
    return [
        ("name", path.resolve().name),
        ("architecture", config.architecture),
        ("parameters", f"{num_parameters(config):,}"),
        ("dtype", config.dtype),
        ("layers", str(config.num_layers)),
        ("hidden size", f"{config.hidden_size} (MLP {config.intermediate_size})"),
        ("attention heads", f"{config.num_heads} ({config.num_kv_heads} KV) x {config.head_dim}"),
        ("context", f"{config.max_position:,} tokens (RoPE theta {rope.theta:g}{scaling})"),
        ("vocabulary", f"{config.vocab_size:,} ({tokenizer_size:,} in the tokenizer)"),
        ("tied embeddings", "yes" if config.tie_word_embeddings else "no"),
        ("KV bytes per token", f"{kv_bytes:,} in {config.dtype}"),
        ("end tokens", ", ".join(map(str, config.eos_token_ids)) or "none"),
        ("chat template", "yes" if has_template else "no"),
    ]
