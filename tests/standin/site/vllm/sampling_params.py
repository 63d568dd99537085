"""What a request may ask for."""


class RequestOutputKind:
    """How outputs come."""

    DELTA = 1
