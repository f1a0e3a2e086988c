"""Whether a change of roles would leave a cluster without one: workers cannot know, so whoever changes them asks here.

Pure. What is asked of a running cluster a moment before may be old when the change happens: this saves from slips, not
from two operators at once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from common.base.roles import ROLES


def lost_roles(before: Mapping[str, Collection[str]], changed: Collection[str], after: Collection[str]) -> list[str]:
    """Roles that somebody has now and nobody would have.

    Args:
        before: roles by worker, of all who answer.
        changed: workers that change.
        after: roles that these shall have.
    """
    now = {role for roles in before.values() for role in roles}
    kept = {role for worker, roles in before.items() if worker not in changed for role in roles}
    return [role for role in ROLES if role in now and role not in kept | set(after)]
