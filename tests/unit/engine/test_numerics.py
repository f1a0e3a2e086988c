"""Which dtypes an engine decides for, and that its id tells different numerics apart."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from common.base.errors import InvalidRequest, Unsupported
from common.engine.numerics import Numerics, has_onednn_path, numerics_id, resolve

FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16


def everything(dtype: torch.dtype) -> bool:
    return dtype in (FP32, BF16, FP16)


def fp32_only(dtype: torch.dtype) -> bool:
    return dtype == FP32


def test_auto_follows_the_checkpoint() -> None:
    assert resolve("auto", "auto", BF16, everything) == Numerics(BF16, BF16, BF16)
    assert resolve("auto", "auto", FP32, everything) == Numerics(FP32, FP32, FP32)


def test_fp32_keeps_narrow_weights_because_widening_is_lossless() -> None:
    assert resolve("fp32", "auto", BF16, everything) == Numerics(BF16, FP32, FP32)


def test_without_a_path_it_computes_in_fp32_and_says_so() -> None:
    numerics = resolve("auto", "auto", BF16, fp32_only)
    assert (numerics.weights, numerics.compute, numerics.kv) == (BF16, FP32, BF16)
    assert "computing in fp32 from bf16 weights" in numerics.notes[0]
    assert resolve("fp32", "auto", BF16, fp32_only).notes == ()


def test_kv_dtype_is_its_own_choice() -> None:
    assert resolve("bf16", "fp32", FP32, everything) == Numerics(BF16, BF16, FP32)
    assert resolve("auto", "int8", BF16, fp32_only).kv == torch.int8
    with pytest.raises(Unsupported, match="int8"):
        resolve("auto", "fp8", BF16, everything)
    with pytest.raises(InvalidRequest):
        resolve("int4", "auto", BF16, everything)


def test_the_id_tells_every_part_apart() -> None:
    base = Numerics(BF16, FP32, BF16)
    ids = {
        numerics_id("cpu", "abc", base),
        numerics_id("torch_ref", "abc", base),
        numerics_id("cpu", "abd", base),
        numerics_id("cpu", "abc", Numerics(FP32, FP32, BF16)),
        numerics_id("cpu", "abc", Numerics(BF16, BF16, BF16)),
        numerics_id("cpu", "abc", Numerics(BF16, FP32, FP32)),
        numerics_id("cpu", "abc", Numerics(BF16, FP32, torch.int8)),
    }
    assert len(ids) == 7
    assert numerics_id("cpu", "abc", Numerics(BF16, FP32, BF16, ("a note",))) in ids


def test_onednn_paths_honour_the_isa_limit() -> None:
    assert has_onednn_path(FP32)
    probe = "import torch; from common.engine.numerics import has_onednn_path as h; print(h(torch.bfloat16))"
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX2"}
    done = subprocess.run(
        [sys.executable, "-c", probe], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.strip() == "False", done.stderr
