"""Import of a GGUF file: writes the Hugging Face-style model directory that the rest of Pando reads.

Atomic (everything is written to a temporary folder beside the target and renamed), idempotent (a directory made from
the same file is left alone) and deterministic (the same file gives the same bytes). The result was checked: its
configuration parses and its tensors are exactly those the configuration implies. bfloat16 weights cost two bytes per
parameter of disk; one shard at a time is held in memory.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from common.base.model_config import ModelError, load_model_config, parse_model_config, read_json
from common.base.model_tensors import tensor_shapes
from common.engine.gguf_file import GgufFile
from common.engine.weights import INDEX_FILE, SINGLE_FILE, load_weights
from common.tokenizer.gguf_vocab import tokenizer_config_json, tokenizer_json

MARKER_FILE = "pando_import.json"
FORMAT = 1
MAX_SHARD_BYTES = 2 << 30

Json = dict[str, Any]


def import_gguf(source: Path, out: Path, max_shard_bytes: int = MAX_SHARD_BYTES) -> bool:
    """Convert the GGUF file `source` into the model directory `out`. Blocks for seconds.

    Returns:
        True if it was converted, False if `out` already holds the result.

    Raises:
        ModelError: the file cannot be converted, `out` holds something else, or the disk refuses.
        Unsupported: the package `gguf` is not installed.
    """
    try:
        with source.open("rb") as stream:
            marker = {"format": FORMAT, "source_sha256": hashlib.file_digest(stream, "sha256").hexdigest()}
        if _is_done(out, marker):
            return False
        gguf = GgufFile(source)
        out.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
        try:
            _write_model(gguf, temporary, marker, max_shard_bytes)
            _publish(temporary, out)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"cannot import {source} into {out}: {error}") from error
    return True


def _publish(temporary: Path, out: Path) -> None:
    """Make the finished folder readable for everybody and give it its name in one step."""
    for file in temporary.iterdir():
        file.chmod(0o644)
    temporary.chmod(0o755)
    temporary.rename(out)


def _is_done(out: Path, marker: Json) -> bool:
    """True if `out` is a whole import of the same file; raises ModelError if it is anything else that exists."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    marker_path = out / MARKER_FILE
    found = read_json(marker_path) if marker_path.is_file() else {}
    sizes = found.pop("files", {})
    if found != marker:
        raise ModelError(f"{out} exists and was not imported from this file: remove it or choose another --out")
    if sizes != _file_sizes(out):
        raise ModelError(f"{out} is an incomplete or changed import: remove it and import again")
    return True


def _write_model(gguf: GgufFile, folder: Path, marker: Json, max_shard_bytes: int) -> None:
    config_json, generation_json = gguf.config_json(), gguf.generation_config_json()
    shapes = tensor_shapes(parse_model_config(config_json, generation_json))
    vocab = gguf.vocab()
    _write_json(folder / "config.json", config_json)
    _write_json(folder / "generation_config.json", generation_json)
    _write_json(folder / "tokenizer.json", tokenizer_json(vocab))
    _write_json(folder / "tokenizer_config.json", tokenizer_config_json(vocab))
    total_bytes = sum(2 * torch.Size(shape).numel() for shape in shapes.values())
    _write_weights(gguf, folder, total_bytes, max_shard_bytes)
    load_weights(folder, load_model_config(folder))
    _write_json(folder / MARKER_FILE, {**marker, "files": _file_sizes(folder)})


def _write_weights(gguf: GgufFile, folder: Path, total_bytes: int, max_shard_bytes: int) -> None:
    """Write the tensors, in one file if all fit into `max_shard_bytes`, else in numbered shards with an index."""
    if total_bytes <= max_shard_bytes:
        save_file(dict(gguf.tensors()), folder / SINGLE_FILE, metadata={"format": "pt"})
        return
    weight_map: dict[str, str] = {}
    shard: dict[str, torch.Tensor] = {}
    shard_bytes, number = 0, 1
    for name, tensor in gguf.tensors():
        if shard and shard_bytes + tensor.nbytes > max_shard_bytes:
            save_file(shard, folder / _shard_name(number), metadata={"format": "pt"})
            shard, shard_bytes, number = {}, 0, number + 1
        shard[name] = tensor
        shard_bytes += tensor.nbytes
        weight_map[name] = _shard_name(number)
    save_file(shard, folder / _shard_name(number), metadata={"format": "pt"})
    _write_json(folder / INDEX_FILE, {"metadata": {"total_size": total_bytes}, "weight_map": weight_map})


def _shard_name(number: int) -> str:
    return f"model-{number:05d}.safetensors"


def _file_sizes(folder: Path) -> dict[str, int]:
    return {file.name: file.stat().st_size for file in sorted(folder.iterdir()) if file.name != MARKER_FILE}


def _write_json(path: Path, value: Json) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
