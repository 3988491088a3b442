"""What parsing an ONNX file would take, told from its bytes: `check_parsed_size(content, path)`.

In protobuf's wire format an empty node is two bytes and a whole number one; parsed, they are 150 and 8. A file of a
megabyte that unpacks to a gigabyte of empty nodes would take 75. So the fields of a large file are walked over first,
without making anything of them: weights are stepped over as a whole, so that this takes no time for a real network.
"""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from surebound.errors import NetworkError
from surebound.limits import PARSED_BYTES, Deadline, mib

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor

_SMALL = 2**20  # bytes of a file that is parsed without looking
_MESSAGE, _TEXT, _OTHER, _INTEGER = 150, 40, 16, 8  # bytes in memory, the last for each byte of a packed list
_OFTEN = 2**16  # fields between two looks at the clock
_VARINT, _EIGHT, _LENGTH, _FOUR = 0, 1, 2, 5  # wire types


class _Field(NamedTuple):
    inside: "Descriptor | None" = None  # the type of a message
    each: int = _OTHER  # bytes in memory
    byte: int = 0  # and for each byte in the file


def check_parsed_size(content: bytes, path: Path, deadline: Deadline, most: int = PARSED_BYTES) -> None:
    """Raise `NetworkError` if the parsed file would take too much memory beside its weights."""
    if len(content) <= _SMALL:
        return
    from onnx import ModelProto

    try:
        size = _parsed_size(content, ModelProto.DESCRIPTOR, deadline, most)
    except (IndexError, ValueError) as error:
        raise NetworkError(f"'{path}' is not an ONNX file, or is cut short; expected an ONNX model") from error
    if size > most:
        raise NetworkError(
            f"'{path}' has so many parts that they take more than {mib(most)}, beside the weights; "
            "expected at most that"
        )


def _parsed_size(content: bytes, model: "Descriptor", deadline: Deadline, most: int) -> int:
    """An estimate in bytes, or any number beyond the limit; IndexError or ValueError for what protobuf cannot read."""
    known: dict[str, dict[int, _Field]] = {}
    unknown = _Field()
    pending = [(0, len(content), model)]  # messages: from, to, type
    size = steps = 0
    while pending and size <= most:
        at, end, kind = pending.pop()
        if kind.full_name not in known:
            known[kind.full_name] = _fields(kind)
        fields = known[kind.full_name]
        while at < end and size <= most:
            steps += 1
            if steps % _OFTEN == 0:
                deadline.check()
            tag = content[at]
            at += 1
            if tag > 127:  # more than one byte
                tag, at = _varint(content, at - 1)
            field, wire = fields.get(tag >> 3, unknown), tag & 7
            size += field.each
            if wire == _LENGTH:
                length = content[at]
                at += 1
                if length > 127:
                    length, at = _varint(content, at - 1)
                size += field.byte * length
                if field.inside is not None and length:
                    pending.append((at, at + length, field.inside))
                at += length
            elif wire == _VARINT:
                _, at = _varint(content, at)
            elif wire in (_EIGHT, _FOUR):
                at += 8 if wire == _EIGHT else 4
            else:
                raise ValueError("a group, which ONNX does not use")
        if at > end:
            raise ValueError("a field reaches beyond its message")
    return size


def _fields(kind: "Descriptor") -> dict[int, _Field]:
    """What a message's fields take, by number."""
    found = {}
    for field in kind.fields:
        if field.message_type is not None:
            found[field.number] = _Field(field.message_type, _MESSAGE)
        elif field.type in (field.TYPE_STRING, field.TYPE_BYTES):
            found[field.number] = _Field(None, _TEXT)
        elif field.type not in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
            found[field.number] = _Field(None, _OTHER, _INTEGER)
    return found


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """A number of variable length, and where it ends."""
    value = shift = 0
    while shift < 70:
        byte = content[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise ValueError("a number of more than 64 bits")
