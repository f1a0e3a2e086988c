"""How long a step of a simulated worker takes: polynomials in what it computes.

The defaults are those of NVIDIA Dynamo's mock engine (aisimulate-core 0.12, `polynomial`), so that both replays can be
compared; set the quadratic terms to 0 and the others to what `bench/engine.py` measures to plan another machine.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class ServiceTimes:
    """Milliseconds of a step: of the prompt tokens in it, plus of the decoding requests in it.

    Attributes:
        prefill_base_ms: when there is at least one prompt token.
        prefill_token_ms: per prompt token.
        prefill_token2_ms: per square of the number of prompt tokens.
        decode_base_ms: when at least one request decodes.
        decode_fill_ms: times the fill, which is the tokens of context of decoding requests / tokens of the whole cache.
        decode_fill2_ms: times the square of the fill.
        transfer_base_ms: of a transfer between workers.
        transfer_token_ms: per token of a transfer.
        speedup: all are divided by it.
    """

    prefill_base_ms: float = 16.50142
    prefill_token_ms: float = 0.01518344
    prefill_token2_ms: float = 4.209989e-07
    decode_base_ms: float = 5.74
    decode_fill_ms: float = 54.01
    decode_fill2_ms: float = -25.74
    transfer_base_ms: float = 1.0
    transfer_token_ms: float = 0.003
    speedup: float = 1.0

    def prefill_s(self, num_tokens: int) -> float:
        """Time for the prompt tokens of a step."""
        if not num_tokens:
            return 0.0
        per_token = self.prefill_token_ms + self.prefill_token2_ms * num_tokens
        return (self.prefill_base_ms + per_token * num_tokens) / 1000 / self.speedup

    def decode_s(self, fill: float) -> float:
        """Time for one token of every decoding request."""
        fill = min(fill, 1.0)
        per_fill = self.decode_fill_ms + self.decode_fill2_ms * fill
        return max(self.decode_base_ms + per_fill * fill, 1.0) / 1000 / self.speedup

    def transfer_s(self, num_tokens: int) -> float:
        """Time to bring the KV of so many tokens from another worker; 0 for none."""
        return (self.transfer_base_ms + self.transfer_token_ms * num_tokens) / 1000 if num_tokens else 0.0
