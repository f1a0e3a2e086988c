"""Rotary position embedding tables of every kind the supported families use.

The tables are computed once per model, so a token's rotation is a pure function of its position. Angles are rounded
to fp32 as the reference implementation of each kind does; cosine and sine are then exact to fp32.

Sources: RoPE (arXiv 2104.09864), position interpolation (2306.15595), YaRN (2309.00071), Llama 3.1's banded scaling.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from common.base.model_config import ModelConfig, RopeConfig

Floats = npt.NDArray[np.float32]


def rope_table(config: ModelConfig) -> tuple[Tensor, Tensor]:
    """Return fp32 (cos, sin), each [max_position, head_dim / 2], the attention factor included."""
    inv_freq, scale = _frequencies(config.rope, config.head_dim)
    positions = np.arange(config.max_position, dtype=np.float32)
    angles = np.outer(positions, inv_freq).astype(np.float64)
    cos = (np.cos(angles).astype(np.float32) * np.float32(scale)).astype(np.float32)
    sin = (np.sin(angles).astype(np.float32) * np.float32(scale)).astype(np.float32)
    return torch.from_numpy(cos), torch.from_numpy(sin)


def _frequencies(rope: RopeConfig, dim: int) -> tuple[Floats, float]:
    """Inverse frequencies [dim / 2] and the factor on cos and sin."""
    exponents = np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
    base = (np.float32(1.0) / np.power(np.float32(rope.theta), exponents)).astype(np.float32)
    match rope.kind:
        case "default" | "dynamic":  # dynamic rescales only past max_position, which no request may reach
            return base, 1.0
        case "linear":
            return (base / np.float32(rope.factor)).astype(np.float32), 1.0
        case "llama3":
            return _llama3(rope, base), 1.0
        case "yarn":
            return _yarn(rope, base, dim), _yarn_attention_factor(rope)
    raise AssertionError(f"RoPE kind {rope.kind!r} passed the configuration check")


def _llama3(rope: RopeConfig, base: Floats) -> Floats:
    """Keep high frequencies, divide low ones by the factor, blend between the two band limits."""
    wavelength = 2 * math.pi / base
    turns = rope.original_max_position / wavelength
    smooth = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blended = (1 - smooth) * base / rope.factor + smooth * base
    low = turns < rope.low_freq_factor
    high = turns > rope.high_freq_factor
    return np.where(low, base / rope.factor, np.where(high, base, blended)).astype(np.float32)


def _yarn(rope: RopeConfig, base: Floats, dim: int) -> Floats:
    """Interpolate dimensions that turn seldom, keep those that turn often, ramp between (YaRN, section 3.2)."""

    def dimension(turns: float) -> float:
        return dim * math.log(rope.original_max_position / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    span = high - low if high != low else 0.001
    ramp: Floats = (np.arange(dim // 2, dtype=np.float32) - np.float32(low)) / np.float32(span)
    keep: Floats = 1 - ramp.clip(0, 1)
    return (base / np.float32(rope.factor) * (1 - keep) + base * keep).astype(np.float32)


def _yarn_attention_factor(rope: RopeConfig) -> float:
    if rope.attention_factor is not None:
        return rope.attention_factor

    def mscale(scale: float) -> float:
        return 1.0 if rope.factor <= 1 else 0.1 * scale * math.log(rope.factor) + 1.0

    if rope.mscale and rope.mscale_all_dim:
        return mscale(rope.mscale) / mscale(rope.mscale_all_dim)
    return mscale(1.0)
