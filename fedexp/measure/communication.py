"""Bytes between the server and the clients, counted from the tensors that were exchanged."""

from fedexp.engine import Exchange
from fedexp.tree import size_in_bytes


def traffic(exchanges: list[Exchange]) -> tuple[int, int]:
    """(bytes up, bytes down) over all clients of these exchanges."""
    up = down = 0
    for each in exchanges:
        sent, trained = each.sent, each.trained
        if sent is not None and not sent.travels:
            continue
        if sent is not None:
            down += size_in_bytes(sent.start) + size_in_bytes(sent.extra)
        if trained is not None:
            up += size_in_bytes(trained.params) + size_in_bytes(trained.reply)
    return up, down
