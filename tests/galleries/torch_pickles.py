"""Pickles, opcode by opcode, and the zip files around them, as torch.save writes them or in whatever way they are
broken. torch_gallery.py and dcp_gallery.py make their cases of these."""
import struct
import zlib

from gallery_bytes import filler, product

E, F, H = 1, 4, 2
PREFIX = "model.layers.0.mlp.experts.0."
MODEL = {PREFIX + "gate_proj.weight": [F, H], PREFIX + "up_proj.weight": [F, H], PREFIX + "down_proj.weight": [H, F]}
GATE, UP, DOWN = MODEL
SHELL = "touch EXECUTED"
PYTHON = "open('EXECUTED', 'w')"
M64 = 1 << 64


def strides_of(shape):
    return [product(shape[i + 1:]) for i in range(len(shape))]


def bf16(name):
    return filler(name, 2 * product(MODEL[name]))


# ---- pickles: each function returns the opcodes that leave one value on the stack ------------------------------

def pickled(body, protocol=2):
    return bytes([0x80, protocol]) + body + b"."


def name_of(module, name):
    return f"c{module}\n{name}\n".encode()


def stack_name(module, name):
    return short_text(module) + short_text(name) + b"\x93"


def text(value):
    raw = value.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def short_text(value):
    raw = value.encode()
    return b"\x8c" + bytes([len(raw)]) + raw


def integer(value):
    if 0 <= value < 256:
        return b"K" + bytes([value])
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    size = (value.bit_length() + 8) // 8
    return b"\x8a" + bytes([size]) + value.to_bytes(size, "little", signed=True)


def tuple_of(*items):
    closers = {0: b")", 1: b"\x85", 2: b"\x86", 3: b"\x87"}
    if len(items) in closers:
        return b"".join(items) + closers[len(items)]
    return b"(" + b"".join(items) + b"t"


def integers(values):
    return tuple_of(*map(integer, values))


def list_of(*items):
    return b"](" + b"".join(items) + b"e"


def items_of(pairs):
    return b"(" + b"".join(key + value for key, value in pairs) + b"u"


def dict_of(fields):
    """`fields`: name -> opcodes, or pairs of opcodes."""
    pairs = [(text(k), v) for k, v in fields.items()] if isinstance(fields, dict) else fields
    return b"}" + items_of(pairs)


def call(function, *arguments):
    return function + tuple_of(*arguments) + b"R"


def made(cls, fields=None):
    """NEWOBJ, and BUILD where there is a state."""
    if fields is None:
        return cls + b")\x81"
    return cls + b")\x81" + (fields if isinstance(fields, bytes) else dict_of(fields)) + b"b"


def put(slot):
    return b"q" + bytes([slot])


def get(slot):
    return b"h" + bytes([slot])


NONE, TRUE, FALSE, REDUCE, BUILD = b"N", b"\x88", b"\x89", b"R", b"b"
ORDERED_DICT = name_of("collections", "OrderedDict")
EMPTY_HOOKS = call(ORDERED_DICT)


BFLOAT16 = name_of("torch", "BFloat16Storage")


def storage(key="0", numel=8, kind=BFLOAT16, more=()):
    return tuple_of(text("storage"), kind, text(key), text("cpu"), integer(numel), *more) + b"Q"


def tensor(key="0", shape=(F, H), strides=None, offset=0, numel=None, kind=BFLOAT16, more=()):
    numel = product(shape) if numel is None else numel
    strides = strides_of(shape) if strides is None else strides
    return call(name_of("torch._utils", "_rebuild_tensor_v2"), storage(key, numel, kind, more), integer(offset),
                integers(shape), integers(strides), FALSE, EMPTY_HOOKS)


def untyped(dtype, shape=(F, H), numel=16):
    return call(name_of("torch._utils", "_rebuild_tensor_v3"),
                storage("0", numel, name_of("torch.storage", "UntypedStorage")), integer(0), integers(shape),
                integers(strides_of(shape)), FALSE, EMPTY_HOOKS, dtype)


def model_items(**other):
    """The model's tensors, any of them replaced."""
    return {name: other.get(name, tensor(str(i), shape)) for i, (name, shape) in enumerate(MODEL.items())}


def with_gate(opcodes):
    return pickled(dict_of({**model_items(), GATE: opcodes}))


def beside(opcodes, protocol=2):
    """The model, and beside it an entry that is no tensor."""
    return pickled(dict_of({"extra": opcodes, **model_items()}), protocol)


# ---- zips ------------------------------------------------------------------------------------------------------

class Record:
    """One entry, with the lies that its headers tell."""

    def __init__(self, name, data, crc=None, method=0, flags=0x0808, local=None, central=None):
        self.name, self.data, self.method, self.flags = name, data, method, flags
        self.crc = zlib.crc32(data) if crc is None else crc
        self.local, self.central = local or {}, central or {}


def local_header(record, prefix, at):
    lies = record.local
    name = (prefix + lies.get("name", record.name)).encode()
    extra = lies.get("extra", b"")
    pad = -(at + 34 + len(name) + len(extra)) % 64
    extra += struct.pack("<2sH", b"FB", pad) + b"Z" * pad
    flags, method = lies.get("flags", record.flags), lies.get("method", record.method)
    return struct.pack("<IHHHIIIIHH", 0x04034B50, 0, flags, method, 0, lies.get("crc", 0), lies.get("stored", 0),
                       lies.get("size", 0), len(name), len(extra)) + name + extra


def central_entry(record, prefix, at):
    lies = record.central
    name = lies.get("raw_name", (prefix + lies.get("name", record.name)).encode())
    extra, size = lies.get("extra", b""), lies.get("size", len(record.data))
    return struct.pack("<IHHHHIIIIHHHHHII", 0x02014B50, 0, 0, record.flags, record.method, 0, record.crc,
                       lies.get("stored", size), size, len(name), len(extra), 0, lies.get("disk", 0), 0, 0,
                       lies.get("at", at)) + name + extra


def zipped(records, prefix="archive/", **lies):
    """As PyTorch writes it: data at multiples of 64, sizes after the data, zip64 end records always."""
    out, central = b"", b""
    for record in records:
        central += central_entry(record, prefix, len(out))
        out += local_header(record, prefix, len(out)) + record.data
        if record.flags & 8 and record.data:
            out += struct.pack("<IIII", 0x08074B50, record.crc, len(record.data), len(record.data))
    return out + central + end_records(len(records), len(central), len(out), **lies)


def end_records(count, size, at, count64=None, size64=None, at64=None, count16=None, size32=None, at32=None,
                locator=None, disk=0, has_zip64=True, comment=b""):
    end = b""
    if has_zip64:
        end64 = at + size if locator is None else locator
        n64 = count if count64 is None else count64
        end += struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 0x031E, 0x2D, 0, 0, n64, n64,
                           size if size64 is None else size64, at if at64 is None else at64)
        end += struct.pack("<IIQI", 0x07064B50, 0, end64, 1)
    n16 = count if count16 is None else count16
    return end + struct.pack("<IHHHHIIH", 0x06054B50, disk, disk, n16, n16, size if size32 is None else size32,
                             at if at32 is None else at32, len(comment)) + comment


def torch_records(pickle=None, data=None, byteorder=b"little"):
    records = [Record("data.pkl", pickled(dict_of(model_items())) if pickle is None else pickle)]
    records.append(Record("byteorder", byteorder))
    records += [Record(f"data/{i}", raw) for i, raw in enumerate(data or map(bf16, MODEL))]
    records.append(Record("version", b"3\n"))
    return records


def torch_file(pickle=None, data=None, **more):
    return zipped(torch_records(pickle, data), **more)


def torch_file_with(index, **fields):
    """One record's headers lie. 0: data.pkl, 1: byteorder, 2 to 4: storages, 5: version."""
    records = torch_records()
    old = records[index]
    records[index] = Record(old.name, old.data, **fields)
    return zipped(records)
