"""What a command says when it cannot do its work: one line with the reason and the way out."""

from __future__ import annotations

FAILED = 1
BAD_INPUT = 2


class CliError(Exception):
    """Ends a command.

    Args:
        message: what is wrong.
        fix: what the user can do about it.
        code: exit status; `BAD_INPUT` when the flags or the model are at fault.
    """

    def __init__(self, message: str, *, fix: str = "", code: int = FAILED) -> None:
        super().__init__(f"{message}: {fix}" if fix else message)
        self.code = code
