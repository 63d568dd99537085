"""Takes secrets out of command lines before they are written anywhere."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

HIDDEN = "***"

_SECRET_WORDS = frozenset(
    [
        "token",
        "apitoken",
        "key",
        "apikey",
        "secret",
        "password",
        "passwd",
        "pass",
        "pwd",
        "passphrase",
        "credential",
        "credentials",
        "auth",
        "authorization",
        "bearer",
        "cookie",
        "signature",
    ]
)
_PROGRAM_FLAGS = ("-c", "-e")
_URL_LOGIN = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_URL_SECRET = re.compile(
    r"(?i)([?&](?:\w*[-_])?(?:token|key|secret|password|signature|sig)=)[^&#\s]+"
)
_PAIR = re.compile(r"""(["'])([\w.-]+)\1(\s*:\s*)(["'])((?:[^\\]|\\.)*?)\4""")
"""A key and a text of JSON, or of what looks like it."""
_ATTACHED = re.compile(r"-p(?=[^/:=]*\d)(?=[^/:=]*[A-Za-z])[^/:=]{4,}")
"""`-pPASSWORD` in one word, as MySQL's programs take it: letters and digits, unlike most flags."""
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")
_HEADER = re.compile(r"(?i)\b(authorization|x-api-key|api-key|cookie)\s*:.*")
_BEARER = re.compile(r"(?i)\bbearer\s+\S+")
_KNOWN_TOKEN = re.compile(
    r"\b(?:hf_|sk-|ghp_|gho_|github_pat_|glpat-|xox[abp]-|AKIA|nvapi-|eyJ)[A-Za-z0-9_\-.]{8,}"
)


def command(argv: Sequence[str]) -> list[str]:
    """``argv`` without what looks secret, for people to recognise a run by.

    Values of flags and assignments whose names speak of tokens, keys or passwords, logins in URLs,
    authorization headers, well-known token shapes, ``-pPASSWORD`` and whole programs (``-c CODE``)
    become ``***``, inside JSON too.
    """
    return list(_words(argv))


def _words(argv: Sequence[str]) -> Iterator[str]:
    hide_next = False
    for index, word in enumerate(argv):
        if hide_next and not word.startswith("--"):
            yield HIDDEN
            hide_next = False
            continue
        name, equals, value = _PAIR.sub(_pair, word).partition("=")
        if equals and _is_secret(name):
            yield f"{text(name)}={value if _is_number(value) else HIDDEN}"
        else:
            yield text(word)
        following = argv[index + 1] if index + 1 < len(argv) else ""
        hide_next = _hides_next(word, following)


def _hides_next(word: str, following: str) -> bool:
    if word in _PROGRAM_FLAGS:
        return True
    return word.startswith("-") and _is_secret(word) and not _is_number(following)


def _is_secret(name: str) -> bool:
    words = {*re.split(r"[^a-z]+", _HUMP.sub("_", name).lower())}
    return not _SECRET_WORDS.isdisjoint(words | {*re.split(r"[^a-z]+", name.lower())})


def _pair(found: re.Match[str]) -> str:
    quote, name, colon, other, value = found.groups()
    told = HIDDEN if _is_secret(name) else value
    return f"{quote}{name}{quote}{colon}{other}{told}{other}"


def _is_number(value: str) -> bool:
    return re.fullmatch(r"[-+.\d]+", value) is not None


def text(word: str) -> str:
    """One word without logins in URLs, authorization headers and well-known token shapes."""
    if _ATTACHED.fullmatch(word):
        return f"-p{HIDDEN}"
    word = _PAIR.sub(_pair, word)
    word = _URL_LOGIN.sub(HIDDEN, word)
    word = _URL_SECRET.sub(rf"\g<1>{HIDDEN}", word)
    word = _HEADER.sub(rf"\g<1>: {HIDDEN}", word)
    word = _BEARER.sub(f"Bearer {HIDDEN}", word)
    return _KNOWN_TOKEN.sub(HIDDEN, word)
