"""What the scripts that write testdata share."""
import struct
import zlib


def product(shape):
    """How many elements a shape has."""
    n = 1
    for extent in shape:
        n *= extent
    return n


def filler(name, size):
    """Bytes that differ from position to position and from tensor to tensor."""
    state = zlib.crc32(name.encode()) | 1
    out = bytearray()
    while len(out) < size:
        state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
        out += struct.pack("<H", state >> 16)
    return bytes(out[:size])
