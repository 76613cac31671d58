"""Reading the file that wandb writes for a run (a LevelDB log of protobuf records)."""

import struct
from collections import defaultdict
from pathlib import Path
from typing import Any

BLOCK, HEADER = 32768, 7


def read(path: Path) -> dict[str, list[Any]]:
    """All whole records by kind (run, history, summary, exit, ...), in order. Raises protobuf's errors for a damaged
    record."""
    from wandb.proto import wandb_internal_pb2

    data, at, part = path.read_bytes(), HEADER, b""
    assert data[:4] == b":W&B"
    records: dict[str, list[Any]] = defaultdict(list)
    while at + HEADER <= len(data):
        left = BLOCK - at % BLOCK
        if left < HEADER:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + HEADER])
        if at + HEADER + length > len(data):
            break  # a record that was cut off while being written
        part += data[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in (1, 4):  # a whole record, or the last part of one
            record = wandb_internal_pb2.Record()  # type: ignore[attr-defined]  # made when it is imported
            record.ParseFromString(part)
            part = b""
            name = record.WhichOneof("record_type")
            records[name].append(getattr(record, name))
    return records
