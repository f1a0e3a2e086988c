"""Weights of a model directory: safetensors files, sharded or not, checked against what the configuration implies.

What `load_weights` returns is complete: exactly the tensors of `common.base.model_tensors`, each with the right shape,
under its Hugging Face name, in the dtype of the file, memory-mapped (pages are read when first touched). It does not
convert, fuse, pack or move anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from common.base.model_config import ModelConfig, ModelError, read_json
from common.base.model_tensors import HEAD, tensor_shapes

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

_DTYPES = ("F32", "F16", "BF16")
_BASE_MODEL_PARTS = ("layers.", "embed_tokens.", "norm.")


def load_weights(path: Path, config: ModelConfig) -> dict[str, torch.Tensor]:
    """Return Hugging Face name -> tensor for every tensor of the model in directory `path`.

    The tensors are private mappings of the files: clone before writing, and keep the files while they are in use.

    Raises:
        ModelError: a file is missing or damaged, or a tensor is missing, unexpected, or of the wrong shape or dtype.
    """
    missing = tensor_shapes(config)
    weights: dict[str, torch.Tensor] = {}
    for file in weight_files(path):
        with _opened(file) as stored:
            for stored_name in sorted(stored.keys()):
                name = _normalised(stored_name)
                if _is_redundant(name, config):
                    continue
                if name in weights:
                    raise ModelError(f"tensor {name} is stored twice in {path}")
                expected = missing.pop(name, None)
                if expected is None:
                    raise ModelError(f"{file} holds an unexpected tensor {stored_name}")
                _check_tensor(stored, stored_name, expected)
                weights[name] = stored.get_tensor(stored_name)
    if missing:
        name, shape = next(iter(missing.items()))
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ModelError(f"tensor {name} of shape {list(shape)}{more} is missing in {path}")
    return weights


def weight_files(path: Path) -> list[Path]:
    """Return the safetensors files of the model directory `path`: those its index names, or the single one.

    Raises:
        ModelError: there is none, or the index is damaged or names a file that does not exist.
    """
    index = path / INDEX_FILE
    if not index.exists():
        if not (path / SINGLE_FILE).is_file():
            raise ModelError(f"{path} has neither {SINGLE_FILE} nor {INDEX_FILE}")
        return [path / SINGLE_FILE]
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{index} has no weight_map")
    names = set()
    for name in weight_map.values():
        if not isinstance(name, str) or Path(name).name != name:
            raise ModelError(f"{index} names a weight file {name!r} that is no plain file name")
        if not (path / name).is_file():
            raise ModelError(f"{path / name}, named by {INDEX_FILE}, is missing")
        names.add(name)
    return [path / name for name in sorted(names)]


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    try:
        with safe_open(file, framework="pt") as stored:
            yield stored
    except (SafetensorError, OSError) as error:
        raise ModelError(f"cannot read {file}: {error}") from error


def _normalised(name: str) -> str:
    """Name within the causal LM of a tensor that may have been saved from the bare base model."""
    return f"model.{name}" if name.startswith(_BASE_MODEL_PARTS) else name


def _is_redundant(name: str, config: ModelConfig) -> bool:
    """True for a copy of a tied head and for the RoPE buffers of old checkpoints."""
    return (name == HEAD and config.tie_word_embeddings) or name.endswith(".rotary_emb.inv_freq")


def _check_tensor(stored: Any, name: str, expected: tuple[int, ...]) -> None:
    header = stored.get_slice(name)
    shape, dtype = tuple(header.get_shape()), header.get_dtype()
    if shape != expected:
        raise ModelError(f"tensor {name} has shape {list(shape)} where config.json implies {list(expected)}")
    if dtype not in _DTYPES:
        raise ModelError(f"tensor {name} has dtype {dtype} (supported: {', '.join(_DTYPES)})")
