"""What all reading of answers begins with: reasoning traces dropped, values made alike."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

# Not % or - or currency signs: they change what a value means.
_OUTER = " \t\r\n.,;:!?…'\"`´“”„‘’«»()[]{}<>*_#。、，；：！？「」『』（）【】"
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u2060\ufeff]")  # soft hyphens, joiners, marks
# Tags that models are trained on (DeepSeek, Qwen: think; Mistral: THINK in brackets; others)
_CLOSED = re.compile(
    r"</(?:think|thinking|thought|reasoning)>|\[/THINK\]|<\|channel\|>final<\|message\|>", re.I
)
_OPENED = re.compile(
    r"<(?:think|thinking|thought|reasoning)>|\[THINK\]|<\|channel\|>analysis", re.I
)


def strip_thinking(text: str) -> tuple[str, bool]:
    """(answer, truncated).  The answer is what follows the last `</think>`, or another tag of its
    kind.

    A trace that never closes has no answer: ("", True).  Chat templates may open the trace inside
    the prompt, so a closing tag needs no opening one.  Applying it twice changes nothing.
    """
    ends = [match.end() for match in _CLOSED.finditer(text)]
    answer = text[ends[-1] :] if ends else text
    return ("", True) if _OPENED.search(answer) else (answer.strip(), False)


@lru_cache(maxsize=1 << 14)
def normalise(value: str) -> str:
    """How values are compared: case, outer punctuation, spaces, underscores and hyphens alike."""
    text = _INVISIBLE.sub("", unicodedata.normalize("NFKC", value)).casefold()
    spaced = " ".join(re.sub(r"(?<=\w)[_\-](?=\w)|\s+", " ", text).split())
    return spaced.strip(_OUTER) or spaced
