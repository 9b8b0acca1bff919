"""The one kind of exception that a person sees: a single line, no traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Something that a person can put right.  The message says what, where and what to do."""


def nearest(name: str, known: Iterable[str]) -> str:
    """' Did you mean X?' for a misspelt name, else the names there are.

    Returns a sentence to append to an error message.
    """
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f"Did you mean {close[0]}?"
    return f"There are: {', '.join(names) or 'none'}."
