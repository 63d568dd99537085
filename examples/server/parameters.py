"""What a client may ask of `POST /v1/completions`, read and checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, cast

from .http import HttpError

JSON_NAMES: dict[type, str] = {str: "string", int: "integer", bool: "boolean"}


@dataclass(frozen=True)
class Parameters:
    """What a client may ask for."""

    prompt: str
    max_tokens: int = 16
    stream: bool = False
    ignore_eos: bool = False

    @classmethod
    def parse(cls, body: bytes) -> Parameters:
        """Read and check a JSON body; HttpError says what is wrong with it."""
        try:
            fields = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise bad_request("the body is not JSON") from error
        if not isinstance(fields, dict):
            raise bad_request("the body is not a JSON object")
        fields = cast("dict[str, Any]", fields)
        parameters = cls(
            prompt=_typed(fields, "prompt", str, None),
            max_tokens=_typed(fields, "max_tokens", int, cls.max_tokens),
            stream=_typed(fields, "stream", bool, cls.stream),
            ignore_eos=_typed(fields, "ignore_eos", bool, cls.ignore_eos),
        )
        if parameters.max_tokens < 1:
            raise bad_request("max_tokens must be at least 1")
        return parameters


def _typed(fields: Mapping[str, Any], name: str, kind: type, default: Any) -> Any:
    """A field of exactly that type: JSON's true is no integer here."""
    value = fields.get(name, default)
    if type(value) is not kind:
        raise bad_request(f"{name} must be a JSON {JSON_NAMES[kind]}")
    return value


def bad_request(message: str) -> HttpError:
    """A 400 with that message."""
    return HttpError(HTTPStatus.BAD_REQUEST, message)
