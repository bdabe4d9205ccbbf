"""Broken and hostile files of torch.save, old ones of it, and directories of
torch.distributed.checkpoint; and some that are only odd and must be read.

manifest.tsv has one line per case: case, arguments of glu-ckpt ({IN} the case, {OUT} a path that does not exist), exit
status, slug. Where a digest is taken of a case of status 0, the model is the same one, so that the digest is, too. What
a hostile pickle would run makes a file called EXECUTED.
"""
import json
import shutil
import struct
import zlib
from pathlib import Path

from dcp_gallery import Dcp, dcp_bombs, dcp_chunks, dcp_items, dcp_metadata
from gallery_bytes import product
from torch_pickles import (
    BUILD, DOWN, EMPTY_HOOKS, F, FALSE, GATE, H, M64, MODEL, NONE, ORDERED_DICT, PYTHON, REDUCE, SHELL, TRUE, UP,
    Record, beside, bf16, call, dict_of, end_records, get, integer, integers, items_of, list_of, local_header, made,
    model_items, name_of, pickled, put, short_text, stack_name, storage, tensor, text, torch_file, torch_file_with,
    torch_records, tuple_of, untyped, with_gate, zipped,
)

# ---- the gallery -----------------------------------------------------------------------------------------------

class Gallery:
    def __init__(self, root):
        self.root, self.lines, self.seen = root, [], set()
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)

    def expect(self, case, slug, command, status):
        assert case not in self.seen, case
        self.seen.add(case)
        arguments = command if "{IN}" in command else command + " {IN}"
        self.lines.append(f"{case}\t{arguments}\t{status}\t{slug}\n")

    def file(self, name, slug, content, command="inspect", status=3):
        (self.root / f"{name}.bin").write_bytes(content)
        self.expect(f"{name}.bin", slug, command, status)

    def directory(self, name, slug, files, command="inspect", status=3):
        for path, content in files.items():
            target = self.root / name / path
            target.parent.mkdir(parents=True, exist_ok=True)
            if not isinstance(content, bytes):
                content = (content if isinstance(content, str) else json.dumps(content, indent=2)).encode()
            target.write_bytes(content)
        self.expect(name, slug, command, status)

    def sound(self, name, content, command="digest"):
        write = self.directory if isinstance(content, dict) else self.file
        write("sound_" + name, "-", content, command, 0)

    def pickle(self, name, slug, pickle, command="inspect"):
        self.file("pickle_" + name, slug, torch_file(pickle), command)

    def finish(self, note):
        (self.root / "manifest.tsv").write_text(f"# {note}\n" + "".join(self.lines))


def hostile_names(g):
    calls = {
        "os_system": ("os", "system", SHELL),
        "posix_system": ("posix", "system", SHELL),
        "nt_system": ("nt", "system", SHELL),
        "subprocess_getoutput": ("subprocess", "getoutput", SHELL),
        "builtins_eval": ("builtins", "eval", PYTHON),
        "builtins_exec": ("builtins", "exec", PYTHON),
        "builtins_import": ("builtins", "__import__", "antigravity"),
        "python2_eval": ("__builtin__", "eval", PYTHON),
        "torch_load": ("torch", "load", "EXECUTED"),
        "torch_hub_load": ("torch.hub", "load", "EXECUTED"),
        "timeit_timeit": ("timeit", "timeit", PYTHON),
        "pickle_loads": ("pickle", "loads", "cos\nsystem\n"),
        "megatron_of_another": ("megatron_core.utils", "Run", SHELL),
    }
    for name, (module, function, argument) in calls.items():
        g.pickle("calls_" + name, "pickle-global", beside(call(name_of(module, function), text(argument))))
    get_attribute = call(name_of("builtins", "getattr"), name_of("builtins", "dict"), text("get"))
    g.pickle("calls_builtins_getattr", "pickle-global", beside(get_attribute))
    popen = call(name_of("subprocess", "Popen"), list_of(text("touch"), text("EXECUTED")))
    g.pickle("calls_subprocess_popen", "pickle-global", beside(popen))
    g.pickle("calls_from_strings", "pickle-global", beside(call(stack_name("os", "system"), text(SHELL)), 4))
    g.pickle("calls_an_attribute", "pickle-global", beside(call(stack_name("torch", "hub.load"), text(SHELL)), 4))
    g.pickle("calls_from_memo", "pickle-global",
             beside(text("os") + put(0) + b"0" + get(0) + text("system") + b"\x93" + text(SHELL) + b"\x85R", 4))
    g.pickle("name_without_call", "pickle-global", beside(name_of("os", "system")))
    g.pickle("name_of_two_lines", "pickle-global", beside(name_of("torch", "Size\r")))
    g.pickle("name_empty", "pickle-global", beside(name_of("", "")))
    g.pickle("name_from_a_number", "pickle-stack", beside(integer(1) + text("system") + b"\x93", 4))
    g.pickle("new_of_unlisted", "pickle-global", beside(made(name_of("code", "InteractiveInterpreter"))))
    g.pickle("build_of_unlisted", "pickle-global",
             beside(made(name_of("logging", "Handler"), {"__class__": name_of("os", "system")})))
    g.pickle("unlisted_after_the_model", "pickle-global",
             pickled(dict_of({**model_items(), "extra": call(name_of("os", "system"), text(SHELL))})))
    g.pickle("sparse_tensor", "pickle-global",
             with_gate(call(name_of("torch._utils", "_rebuild_sparse_tensor"), name_of("torch", "sparse_coo"))))


def hostile_calls(g):
    g.pickle("reduce_on_a_dict", "pickle-call", beside(b"})R"))
    g.pickle("reduce_on_a_string", "pickle-call", beside(call(text("os.system"), text(SHELL))))
    g.pickle("reduce_on_a_result", "pickle-call", beside(call(EMPTY_HOOKS, text(SHELL))))
    g.pickle("reduce_on_a_dtype", "pickle-call", beside(call(name_of("torch", "bfloat16"))))
    g.pickle("reduce_on_a_storage", "pickle-call", beside(call(storage())))
    g.pickle("reduce_with_a_list", "pickle-call", beside(ORDERED_DICT + list_of(integer(1)) + REDUCE))
    g.pickle("reduce_of_a_megatron_function", "pickle-call",
             beside(call(name_of("megatron.core.utils", "run"), text(SHELL))))
    g.pickle("new_on_a_string", "pickle-call", beside(text("Namespace") + b")\x81"))
    g.pickle("new_with_keywords", "pickle-call",
             beside(name_of("argparse", "Namespace") + b")" + dict_of({"a": NONE}) + b"\x92", 4))
    g.pickle("build_on_a_list", "pickle-call", beside(list_of(NONE) + dict_of({"a": NONE}) + BUILD))
    g.pickle("build_on_a_name", "pickle-call", beside(name_of("torch", "Size") + dict_of({"a": NONE}) + BUILD))


def broken_opcodes(g):
    opcodes = {
        "inst": b"(" + text(SHELL) + b"ios\nsystem\n",
        "obj": b"(" + name_of("argparse", "Namespace") + b"o",
        "ext1": b"\x82\x01",
        "ext4": b"\x84" + b"\xff" * 4,
        "persid": b"Pstorage\n",
        "int_as_text": b"I1\n",
        "list_of_mark": b"(l",
        "next_buffer": b"\x97",
        "readonly_buffer": NONE + b"\x98",
        "of_no_protocol": b"\xff",
        "second_proto": b"\x80\x02" + NONE,
        "of_python_1": b"S'text'\n",
    }
    for name, body in opcodes.items():
        g.pickle("opcode_" + name, "pickle-opcode", beside(body))
    for protocol in (0, 1, 6, 255):
        g.pickle(f"protocol_{protocol}", "pickle-opcode", pickled(dict_of(model_items()), protocol))
    g.pickle("without_proto", "pickle-opcode", pickled(dict_of(model_items()))[2:])
    g.pickle("string_not_utf8", "pickle-opcode", beside(b"X\x02\0\0\0\xff\xfe"))

    g.pickle("memo_never_set", "pickle-memo", beside(get(7)))
    g.pickle("memo_never_set_long", "pickle-memo", beside(b"j\xff\xff\xff\xff"))
    stacks = {
        "empty_at_stop": b"",
        "two_values_at_stop": dict_of(model_items()) + NONE,
        "mark_at_stop": b"(" + dict_of(model_items()),
        "underflow_reduce": name_of("torch", "Size") + REDUCE,
        "underflow_tuple": b"\x87",
        "underflow_pop": b"0",
        "underflow_persid": b"Q",
        "underflow_put": b"q\0",
        "tuple_without_mark": NONE + b"t",
        "below_a_mark": NONE + b"(R",
        "setitems_of_three": b"}(" + text("a") + NONE + text("b") + b"u",
        "setitems_on_a_list": b"](" + text("a") + NONE + b"u",
        "appends_to_a_dict": b"}(" + NONE + b"e",
        "append_to_a_tuple": b")" + NONE + b"a",
        "additems_to_a_list": b"](" + NONE + b"\x90",
    }
    for name, body in stacks.items():
        g.pickle("stack_" + name, "pickle-stack", pickled(body))


def broken_lengths(g):
    whole = pickled(dict_of(model_items()))
    g.file("pickle_truncated_to_0_bytes", "pickle-truncated", torch_file(b""))
    for name, end in {"to_1_byte": 1, "after_proto": 2, "in_a_string": whole.index(b"gate_proj"),
                      "in_a_name": whole.index(b"_rebuild_tensor"), "in_the_middle": len(whole) // 2,
                      "before_stop": len(whole) - 1}.items():
        g.pickle("truncated_" + name, "pickle-truncated", whole[:end])
    counted = {"binunicode": (b"X", 4), "binunicode8": (b"\x8d", 8), "binbytes": (b"B", 4), "binbytes8": (b"\x8e", 8),
               "bytearray8": (b"\x96", 8), "frame": (b"\x95", 8), "long4": (b"\x8b", 4), "binstring": (b"T", 4)}
    for name, (opcode, width) in counted.items():
        for length, value in (("signed_max", (1 << (8 * width - 1)) - 1), ("all_ones", (1 << 8 * width) - 1)):
            g.pickle(f"length_{name}_{length}", "pickle-truncated",
                     beside(opcode + value.to_bytes(width, "little") + b"12345678", 5))
    g.pickle("length_one_past_end", "pickle-truncated", b"\x80\x02X" + struct.pack("<I", 3) + b"a.")
    g.pickle("long_of_5000_bytes", "pickle-limit", beside(b"\x8b" + struct.pack("<I", 5000) + b"\x7f" * 5000))


def bombs(g):
    gate = put(0) + b"0" + get(0)
    doubling_lists = list_of(tensor()) + gate + b"".join(
        b"0](" + get(i % 2) + get(i % 2) + b"e" + put(1 - i % 2) for i in range(60))
    g.pickle("bomb_of_lists", "pickle-limit", pickled(dict_of({"a": doubling_lists})))
    doubling_dicts = dict_of({"t": tensor()}) + put(0) + b"".join(
        b"0}(" + text("a") + get(i % 2) + text("b") + get(i % 2) + b"u" + put(1 - i % 2) for i in range(60))
    g.pickle("bomb_of_dicts", "pickle-limit", pickled(dict_of({"a": doubling_dicts})))
    doubling_key = tuple_of(NONE) + put(0) + b"".join(
        b"0" + get(i % 2) + get(i % 2) + b"\x86" + put(1 - i % 2) for i in range(60))
    g.pickle("bomb_in_a_key", "pickle-limit", pickled(dict_of([(doubling_key, tensor())])))
    many = items_of([(text(f"{i:x}"), get(1)) for i in range(500)])
    named = text("k" * 4096) + put(0) + b"0" + tensor() + put(1) + b"0"
    g.pickle("bomb_of_long_names", "pickle-limit",
             pickled(named + b"".join(b"}" + get(0) for _ in range(190)) + b"}" + many + b"s" * 190))
    shared = named + b"}" + many + put(2) + b"0](" + get(2) * 60 + b"e" + put(3)
    g.pickle("bomb_of_tensors", "pickle-limit", pickled(shared + b"0](" + get(3) * 60 + b"e"))
    doubling_objects = dict_of({"n": NONE}) + put(0) + b"".join(
        b"0}(" + text("a") + get(i % 2) + text("b") + get(i % 2) + b"u" + put(1 - i % 2) for i in range(60))
    g.pickle("bomb_of_objects", "pickle-limit", beside(doubling_objects),
             "convert {IN} {OUT} --force --format torch-dist")
    axes = tensor(shape=[1] * 20000, strides=[1] * 20000, numel=1)
    g.pickle("bomb_of_axes", "torch-strides",
             pickled(axes + put(0) + b"0" + dict_of([(text(f"{i:x}"), get(0)) for i in range(1000)])))
    sparse_puts = b"".join(b"r" + struct.pack("<I", (i * 2654435761) % (1 << 32)) for i in range(1000))
    g.pickle("bomb_of_memo_slots", "pickle-memo", beside(NONE + sparse_puts + b"0j" + struct.pack("<I", 5)))
    g.pickle("deep_lists", "pickle-depth", beside(b"]" * 5000 + NONE + b"a" * 5000))
    g.pickle("deep_tuples_100000", "pickle-depth", beside(NONE + b"\x85" * 100_000))
    g.pickle("deep_dicts_with_a_tensor", "pickle-depth",
             pickled(b"".join(b"}" + text("k") for _ in range(300)) + tensor() + b"s" * 300))
    g.pickle("deep_parameters", "torch-object",
             with_gate(name_of("torch._utils", "_rebuild_parameter") * 10 + tensor() +
                       (FALSE + EMPTY_HOOKS + b"\x87R") * 10))
    g.pickle("list_in_itself", "pickle-depth", pickled(b"]" + put(0) + b"(" + tensor() + get(0) + b"e"))
    g.pickle("list_in_itself_twice", "pickle-depth", pickled(b"]" + put(0) + b"(" + tensor() + get(0) + get(0) + b"e"))
    g.pickle("dict_in_itself", "pickle-depth",
             pickled(b"}" + put(0) + b"(" + text("t") + tensor() + text("a") + get(0) + b"u"))


def broken_objects(g):
    g.pickle("one_tensor_alone", "not-supported", pickled(tensor()))
    g.pickle("duplicate_key", "duplicate-key",
             pickled(dict_of([(text(n), tensor(k)) for n, k in ((GATE, "0"), (UP, "1"), (GATE, "0"))])))
    g.pickle("duplicate_dotted", "duplicate-key",
             pickled(dict_of({"a.b": tensor(), "a": dict_of({"b": tensor("1")})})))
    g.pickle("duplicate_under_model", "duplicate-key",
             pickled(dict_of({"model": dict_of({"a": tensor()}), "a": tensor("1")})))
    g.pickle("tensor_in_a_namespace", "not-supported",
             pickled(dict_of({**model_items(), "args": made(name_of("argparse", "Namespace"), {"a": tensor()})})))
    g.pickle("tensor_in_a_megatron_object", "not-supported",
             pickled(dict_of({**model_items(), "a": made(name_of("megatron.core.tensor", "Fancy"), {"a": tensor()})})))
    g.pickle("tensor_subclass", "not-supported",
             with_gate(call(name_of("torch._tensor", "_rebuild_from_type_v2"),
                            name_of("torch._utils", "_rebuild_tensor_v2"), name_of("megatron.core.tensor", "Fancy"),
                            tuple_of(storage(), integer(0), integers([F, H]), integers([H, 1]), FALSE, EMPTY_HOOKS),
                            NONE)))
    g.pickle("quantized_tensor", "not-supported",
             with_gate(call(name_of("torch._utils", "_rebuild_qtensor"),
                            storage("0", 8, name_of("torch", "QInt8Storage")), integer(0), integers([F, H]),
                            integers([H, 1]), tuple_of(name_of("torch", "per_tensor_affine"), integer(1), integer(0)),
                            FALSE, EMPTY_HOOKS)))
    # torch.load() negates or conjugates what is in the storage.
    for fact in ("neg", "conj"):
        g.pickle(f"tensor_with_the_{fact}_bit", "not-supported",
                 with_gate(call(name_of("torch._utils", "_rebuild_tensor_v2"), storage(), integer(0), integers([F, H]),
                                integers([H, 1]), FALSE, EMPTY_HOOKS, dict_of({fact: TRUE}))))
    g.pickle("meta_tensor", "not-supported",
             with_gate(call(name_of("torch._utils", "_rebuild_meta_tensor_no_storage"), name_of("torch", "bfloat16"),
                            integers([F, H]), integers([H, 1]), FALSE)))
    g.pickle("wrapper_subclass", "not-supported",
             with_gate(call(name_of("torch._utils", "_rebuild_wrapper_subclass"), name_of("torch", "Tensor"),
                            name_of("torch", "bfloat16"), integers([F, H]), integers([H, 1]), integer(0))))
    g.pickle("bare_storage", "torch-object", with_gate(storage()))
    forged = tuple_of(text("glu_ckpt"), text(GATE)) + b"Q"
    g.pickle("placeholder_of_ours", "torch-object", with_gate(forged))
    g.pickle("placeholder_in_an_object", "not-supported",
             beside(made(name_of("argparse", "Namespace"), {"a": forged})))
    g.pickle("storage_is_a_tuple", "torch-object", with_gate(tensor().replace(b"tQ", b"t", 1)))
    g.pickle("storage_of_unknown_type", "pickle-global", with_gate(tensor(kind=name_of("torch", "FancyStorage"))))
    g.pickle("storage_of_no_type", "not-supported", with_gate(tensor(kind=name_of("torch", "bfloat16"))))
    g.pickle("storage_of_quantized_type", "not-supported", with_gate(tensor(kind=name_of("torch", "QInt8Storage"))))
    g.pickle("storage_untyped_without_dtype", "not-supported",
             with_gate(tensor(kind=name_of("torch.storage", "UntypedStorage"))))
    g.pickle("storage_id_of_another_kind", "torch-object", with_gate(tensor().replace(b"storage", b"network")))
    g.pickle("storage_id_too_short", "torch-object",
             with_gate(call(name_of("torch._utils", "_rebuild_tensor_v2"), tuple_of(text("storage")) + b"Q", integer(0),
                            integers([F, H]), integers([H, 1]), FALSE, EMPTY_HOOKS)))
    g.pickle("dtype_is_a_string", "torch-object", with_gate(untyped(text("bfloat16"))))
    g.pickle("dtype_is_a_layout", "not-supported", with_gate(untyped(name_of("torch", "strided"))))
    g.pickle("tensor_of_two_arguments", "torch-object",
             with_gate(call(name_of("torch._utils", "_rebuild_tensor_v2"), storage(), integer(0))))
    g.pickle("shape_of_strings", "torch-object",
             with_gate(call(name_of("torch._utils", "_rebuild_tensor_v2"), storage(), integer(0),
                            tuple_of(text("4"), text("2")), integers([H, 1]), FALSE, EMPTY_HOOKS)))
    g.pickle("shape_of_2_64", "torch-object", with_gate(tensor(shape=[M64, 1], strides=[1, 1], numel=8)))


def broken_storages(g):
    top = (1 << 63) - 1
    for name, fields in {
        "storage_too_short": dict(numel=7), "storage_of_zero": dict(numel=0), "offset_beyond": dict(offset=1),
        "offset_negative": dict(offset=-1), "offset_2_63_minus_1": dict(offset=top),
        "strides_beyond": dict(strides=[3, 1]), "stride_negative": dict(strides=[-2, 1]),
        "stride_2_63_minus_1": dict(strides=[top, 1]), "stride_minus_2_63": dict(strides=[-top - 1, 1]),
        "strides_too_few": dict(strides=[1]), "strides_too_many": dict(strides=[2, 1, 1]),
        "expanded_to_2_60_bytes": dict(shape=[1 << 59], strides=[0], numel=8),
    }.items():
        g.pickle("tensor_" + name, "torch-strides", with_gate(tensor(**{**dict(numel=8), **fields})))
    for name, shape in {"negative": [-4, 2], "both_negative": [-4, -2], "2_63_minus_1": [top, 2],
                        "product_2_64": [1 << 32, 1 << 32], "product_in_bytes": [1 << 62]}.items():
        g.pickle("shape_" + name, "shape-overflow", with_gate(tensor(shape=shape, strides=[0] * len(shape), numel=8)))
    for name, numel in {"negative": -8, "2_63_minus_1": top, "2_62": 1 << 62}.items():
        g.pickle("numel_" + name, "torch-storage", with_gate(tensor(numel=numel)))
    g.pickle("record_shorter_than_numel", "torch-storage", with_gate(tensor(numel=9)))
    g.pickle("record_missing", "torch-storage", with_gate(tensor("3")))
    g.pickle("record_outside", "torch-storage", with_gate(tensor("../../../../etc/passwd")))
    g.pickle("record_is_the_pickle", "torch-storage", with_gate(tensor("../data.pkl")))
    g.file("record_longer_than_numel", "torch-storage", torch_file(data=[bf16(GATE) + b"\0\0", bf16(UP), bf16(DOWN)]))
    g.file("record_empty", "torch-storage", torch_file(data=[b"", bf16(UP), bf16(DOWN)]))
    g.file("big_endian", "not-supported", zipped(torch_records(byteorder=b"big")))
    g.file("byteorder_unknown", "not-supported", zipped(torch_records(byteorder=b"middle")))
    g.file("crc_of_a_storage", "zip-crc", torch_file_with(2, crc=0x12345678), "digest")
    g.file("crc_of_the_pickle", "zip-crc", torch_file_with(0, crc=0x12345678))
    flipped = bytearray(torch_file())
    flipped[flipped.index(bf16(UP))] ^= 1
    g.file("one_bit_of_a_storage", "zip-crc", bytes(flipped), "digest")


def broken_entries(g):
    packed = zlib.compressobj(9, zlib.DEFLATED, -15)
    raw = bf16(GATE)
    deflated = packed.compress(raw) + packed.flush()
    g.file("zip_entry_deflated", "zip-compressed",
           torch_file_with(2, method=8, central=dict(size=len(raw), stored=len(deflated))))
    g.file("zip_entry_encrypted", "zip-compressed", torch_file_with(2, flags=0x0809))
    for name, index, lies in (
        ("name", 2, dict(name="data/1")), ("shorter_name", 2, dict(name="data/")), ("method", 2, dict(method=8)),
        ("size", 2, dict(size=17, stored=17)), ("stored_size", 2, dict(stored=8)), ("crc", 2, dict(crc=1)),
        ("size_of_the_pickle", 0, dict(size=2, stored=2)),
        ("zip64_absent", 2, dict(size=0xFFFFFFFF, stored=0xFFFFFFFF)),
        ("zip64_short", 2, dict(size=0xFFFFFFFF, stored=0xFFFFFFFF, extra=struct.pack("<HHQ", 1, 8, 16))),
        ("zip64_of_another_size", 2,
         dict(size=0xFFFFFFFF, stored=0xFFFFFFFF, extra=struct.pack("<HHQQ", 1, 16, 1 << 40, 1 << 40))),
        ("encrypted", 2, dict(flags=0x0809)),
    ):
        g.file("zip_local_" + name, "zip-local-header", torch_file_with(index, local=lies))
    for name, slug, lies in (
        ("offset_past_end", "zip-local-header", dict(at=1 << 30)),
        ("offset_of_another", "zip-local-header", dict(at=0)),
        ("offset_astray", "zip-local-header", dict(at=7)), ("name_empty", "zip-directory", dict(raw_name=b"")),
        ("name_without_folder", "zip-directory", dict(raw_name=b"data")),
        ("name_in_another_folder", "zip-directory", dict(raw_name=b"archives/data/0")),
        ("name_with_nul", "zip-directory", dict(raw_name=b"archive/data/0\0")),
        ("name_not_utf8", "zip-directory", dict(raw_name=b"archive/\xff")),
        ("size_past_directory", "zip-overlap", dict(size=1 << 20)),
        ("stored_size", "zip-directory", dict(stored=17)), ("disk_1", "zip-directory", dict(disk=1)),
        ("zip64_absent", "zip-directory", dict(size=0xFFFFFFFF)),
        ("zip64_short", "zip-directory", dict(size=0xFFFFFFFF, extra=struct.pack("<HHQ", 1, 8, 16))),
        ("zip64_2_64_minus_1", "zip-directory",
         dict(size=0xFFFFFFFF, extra=struct.pack("<HHQQ", 1, 16, M64 - 1, M64 - 1))),
        ("zip64_2_63_minus_1", "zip-overlap",
         dict(size=0xFFFFFFFF, extra=struct.pack("<HHQQ", 1, 16, M64 // 2 - 1, M64 // 2 - 1))),
        ("zip64_offset_2_63_minus_1", "zip-local-header",
         dict(at=0xFFFFFFFF, extra=struct.pack("<HHQ", 1, 8, M64 // 2 - 1))),
        ("zip64_twice", "zip-directory",
         dict(size=0xFFFFFFFF, extra=struct.pack("<HHQQ", 1, 16, 16, 16) + struct.pack("<HHQQ", 1, 16, 64, 64))),
        ("extra_past_end", "zip-directory", dict(extra=struct.pack("<HH", 1, 1000))),
    ):
        g.file("zip_central_" + name, slug, torch_file_with(2, central=lies))
    g.file("zip_entries_overlap", "zip-overlap", overlapping())
    records = torch_records()
    g.file("zip_record_twice", "zip-directory", zipped(records + [Record("data.pkl", pickled(NONE))]))
    g.file("zip_without_data_pkl", "torch-object", zipped(records[1:]))
    g.file("zip_without_prefix", "zip-directory", zipped(records, prefix=""))


def overlapping():
    """A local header of data/1 stands within the data of data/0: two names, one range of bytes."""
    inner = local_header(Record("data/1", bf16(UP)), "archive/", 0) + bf16(UP)
    whole = torch_records(data=[inner, bf16(UP), bf16(DOWN)])
    at = zipped(whole).index(inner)
    whole[3] = Record("data/1", bf16(UP), central=dict(at=at))
    return zipped(whole)


def broken_zips(g):
    whole = torch_file()
    middle = len(whole) // 2
    for name, end in {"to_4_bytes": 4, "to_half": middle, "before_directory": whole.index(b"PK\x01\x02"),
                      "before_end_records": whole.index(b"PK\x06\x06"), "before_end_record": len(whole) - 22,
                      "by_1_byte": len(whole) - 1}.items():
        g.file("zip_truncated_" + name, "zip-directory", whole[:end])
    g.file("zip_truncated_at_the_front", "zip-directory", whole[64:])
    g.file("zip_with_a_tail", "zip-directory", whole + b"\0")
    g.file("zip_with_a_front", "zip-directory", b"\0" * 64 + whole)
    g.file("zip_end_record_hidden", "zip-directory", whole[:-2] + struct.pack("<H", 1 << 14))
    for name, lies in {
        "entries_one_more": dict(count16=7, count64=7), "entries_one_less": dict(count16=5, count64=5),
        "entries_none": dict(count16=0, count64=0), "entries_2_64_minus_1": dict(count16=0xFFFF, count64=M64 - 1),
        "entries_2_40": dict(count16=0xFFFF, count64=1 << 40), "entries_in_two_voices": dict(count64=5),
        "size_one_less": dict(size32=100, size64=100), "size_2_63": dict(size32=0xFFFFFFFF, size64=1 << 63),
        "offset_2_64_minus_1": dict(at32=0xFFFFFFFF, at64=M64 - 1), "offset_0": dict(at32=0, at64=0),
        "offset_in_two_voices": dict(at64=0), "locator_astray": dict(locator=0),
        "locator_2_64_minus_1": dict(locator=M64 - 1), "zip64_absent": dict(has_zip64=False, count16=0xFFFF),
        "zip64_absent_for_offset": dict(has_zip64=False, at32=0xFFFFFFFF),
        "disk_1": dict(disk=1), "comment_with_a_directory": dict(comment=b"PK\x05\x06" + bytes(18)),
    }.items():
        g.file("zip_end_" + name, "zip-directory", torch_file(**lies))
    g.file("zip_of_nothing", "zip-directory", end_records(0, 0, 0))
    g.file("file_empty", "zip-directory", b"")
    g.file("file_of_text", "zip-directory", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 123\n")
    g.file("file_is_a_tar", "zip-directory", b"storages".ljust(257, b"\0") + b"ustar".ljust(255, b"\0"))


def shards(g):
    def shard(*names):
        return zipped(torch_records(pickled(dict_of({n: tensor(str(i), MODEL[n]) for i, n in enumerate(names)})),
                                    [bf16(n) for n in names]))

    first, second = "pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"
    both = {first: shard(GATE, UP), second: shard(DOWN)}
    weight_map = {GATE: first, UP: first, DOWN: second}

    def index(mapping):
        return {"pytorch_model.bin.index.json": {"metadata": {"total_size": 48}, "weight_map": mapping}}

    g.sound("shards", {**both, **index(weight_map)})
    g.directory("shard_missing", "index-missing-shard", {first: both[first], **index(weight_map)})
    g.directory("shard_missing_without_index", "index-missing-shard", {first: both[first]})
    g.directory("shard_stale", "index-stale", {**both, **index({**weight_map, "gone": first})})
    g.directory("shard_key_in_another", "index-stale", {**both, **index({**weight_map, DOWN: first})})
    g.directory("shard_key_unlisted", "index-incomplete", {**both, **index({GATE: first, DOWN: second})})
    g.directory("shard_outside", "index-path", {**both, **index({**weight_map, DOWN: "../" + second})})
    g.directory("shard_absolute", "index-path", {**both, **index({**weight_map, DOWN: "/etc/passwd"})})
    g.directory("shard_index_not_json", "index-json", {**both, "pytorch_model.bin.index.json": "weights"})
    g.directory("shard_twice_the_same_key", "duplicate-key", {first: shard(GATE, UP), second: shard(DOWN, UP)})
    g.directory("rank_without_files", "not-supported", {"mp_rank_00/readme.txt": "nothing here\n"})
    g.directory("shard_hostile", "pickle-global",
                {first: both[first], second: torch_file(beside(call(name_of("os", "system"), text(SHELL)))),
                 **index(weight_map)})


# ---- torch.save before zip -------------------------------------------------------------------------------------

MAGIC = pickled(b"\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19")
SYSTEM = pickled(dict_of({"protocol_version": integer(1001), "little_endian": TRUE,
                          "type_sizes": dict_of({"short": integer(2), "int": integer(4), "long": integer(4)})}))


def old_tensor(key, shape, view=NONE, **fields):
    return tensor(key, shape, more=(view,), **fields)


def old_file(pickle=None, keys=None, system=SYSTEM, version=1001, counts=None):
    names = list(MODEL)
    if pickle is None:
        pickle = pickled(dict_of({n: old_tensor(str(i), MODEL[n]) for i, n in enumerate(names)}))
    keys = [str(i) for i in range(len(names))] if keys is None else keys
    out = MAGIC + pickled(integer(version)) + system + pickle + pickled(list_of(*map(text, keys)))
    for i, name in enumerate(names):
        out += struct.pack("<q", product(MODEL[name]) if counts is None else counts[i]) + bf16(name)
    return out


def old_files(g):
    g.sound("old_file", old_file())
    # An untyped storage counts bytes, here and where its bytes are.
    wide = untyped(name_of("torch", "uint16"), [4], 8).replace(b"K\x08tQ", b"K\x08NtQ")
    g.sound("old_file_untyped", MAGIC + pickled(integer(1001)) + SYSTEM + pickled(dict_of({"a": wide})) +
            pickled(list_of(text("0"))) + struct.pack("<q", 8) + bytes(8), "inspect")
    whole = old_file()
    magic = len(MAGIC)
    for name, slug, end in (("in_magic", "zip-directory", 9), ("after_magic", "pickle-truncated", magic),
                            ("in_the_pickle", "pickle-truncated", whole.index(b"up_proj")),
                            ("before_the_keys", "pickle-truncated", whole.index(b"](")),
                            ("before_the_storages", "file-truncated", len(whole) - 3 * 24),
                            ("in_a_count", "file-truncated", len(whole) - 20),
                            ("in_a_storage", "file-truncated", len(whole) - 1)):
        g.file("old_truncated_" + name, slug, whole[:end])
    g.file("old_with_a_tail", "trailing-bytes", whole + b"\0")
    g.file("old_key_missing", "torch-storage", old_file(keys=["0", "1"]))
    g.file("old_key_twice", "torch-storage", old_file(keys=["0", "1", "1"]))
    g.file("old_key_unused", "torch-storage", old_file(keys=["0", "1", "7"]))
    g.file("old_count_negative", "file-truncated", old_file(counts=[8, -1, 8]))
    g.file("old_count_2_63_minus_1", "file-truncated", old_file(counts=[8, (1 << 63) - 1, 8]))
    g.file("old_count_of_another_storage", "file-truncated", old_file(counts=[8, 7, 8]))
    short = old_tensor("0", MODEL[GATE], numel=7)
    g.file("old_tensor_past_storage", "torch-strides",
           old_file(pickled(dict_of({**{n: old_tensor(str(i), MODEL[n]) for i, n in enumerate(MODEL)}, GATE: short}))))
    view = tuple_of(text("v"), integer(0), integer(8))
    viewed = pickled(dict_of({n: old_tensor(str(i), MODEL[n], view) for i, n in enumerate(MODEL)}))
    g.file("old_view_of_a_storage", "not-supported", old_file(viewed))
    g.file("old_big_endian", "not-supported", old_file(system=pickled(dict_of({"little_endian": FALSE}))))
    g.file("old_of_another_version", "not-supported", old_file(version=1002))
    hostile = pickled(call(name_of("os", "system"), text(SHELL)))
    g.file("old_hostile", "pickle-global", old_file(hostile))
    g.file("old_hostile_system", "pickle-global", old_file(system=hostile))
    g.file("old_hostile_keys", "pickle-global",
           old_file(keys=[])[:-72].removesuffix(pickled(list_of())) + hostile + bytes(72))


def extras(g):
    """What glu-ckpt keeps beside the tensors, changed by somebody else."""
    to_torch = "convert {IN} {OUT} --force --format torch"

    def kept(listing, *trees):
        records = [Record("extras.json", listing if isinstance(listing, bytes) else json.dumps(listing).encode())]
        return zipped(records + [Record(f"tree/{i}", tree) for i, tree in enumerate(trees)], prefix="extras/")

    def listing(*files):
        trees = [{"file": file, "prefix": ""} for file in files]
        return {"version": 1, "trees": trees, "objects": [], "paths": {}, "metadata_json": "", "integrity": False}

    def held(name):
        return tuple_of(text("glu_ckpt"), text(name)) + b"Q"

    def case(name, slug, content, command=to_torch, status=3):
        g.directory("extras_" + name, slug, {"model.safetensors": safetensors(), "glu_ckpt.extras": content}, command,
                    status)

    tree = pickled(dict_of({name: held(name) for name in MODEL}))
    g.sound("extras", {"model.safetensors": safetensors(), "glu_ckpt.extras": kept(listing("a.pt"), tree)})
    for name, path in {"parent": "../escaped.pt", "inner_parent": "a/../../escaped.pt",
                       "absolute": "/dev/full/escaped.pt", "empty": "", "nul": "a\0.pt", "directory": "a/"}.items():
        case("path_" + name, "extras-invalid", kept(listing(path), tree))
    case("path_of_the_record", "name-collision", kept(listing("glu_ckpt.json"), tree), status=4)
    case("two_of_one_path", "name-collision", kept(listing("a.pt", "a.pt"), tree, tree), status=4)
    case("garbage", "zip-directory", b"extras", "inspect")
    case("without_listing", "extras-invalid", zipped([Record("other", b"{}")]), "inspect")
    case("listing_not_json", "extras-invalid", kept(b"extras"), "inspect")
    case("listing_a_list", "extras-invalid", kept(b"[]"), "inspect")
    case("tree_missing", "extras-invalid", kept(listing("a.pt")), "inspect")
    case("tree_hostile", "pickle-global", kept(listing("a.pt"), pickled(call(name_of("os", "system"), text(SHELL)))))
    case("tree_cut", "pickle-truncated", kept(listing("a.pt"), tree[:-20]))
    case("tree_with_a_storage", "extras-invalid", kept(listing("a.pt"), pickled(dict_of({GATE: storage()}))))
    case("crc", "zip-crc", zipped([Record("extras.json", json.dumps(listing()).encode(), crc=1)]), "inspect")
    records = torch_records()
    g.file("record_not_json", "record-invalid", zipped(records + [Record("glu_ckpt.json", b"glu")]))
    g.file("extras_in_a_file", "zip-directory", zipped(records + [Record("glu_ckpt.extras", b"extras")]))


def safetensors():
    header, data = {}, b""
    for name, shape in MODEL.items():
        raw = bf16(name)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    return struct.pack("<Q", len(head)) + head + data


def trackers(g):
    tracker = "latest_checkpointed_iteration.txt"
    whole = {f"iter_0000005/{path}": content for path, content in Dcp().files().items()}
    g.sound("tracker", {tracker: "5", **whole})
    for name, content in {"outside": "../../x", "absolute": "/etc", "empty": "", "blank": " \n", "huge": "9" * 400,
                          "2_64": str(M64), "negative": "-5", "fraction": "5.0", "a_directory": "iter_0000005",
                          "missing": "6", "release_missing": "release", "of_two_lines": "5\n6\n", "nul": "5\0",
                          "not_text": b"\xff\xfe5", "of_100000_bytes": "5" + " " * 100_000}.items():
        g.directory("tracker_" + name, "tracker-invalid", {tracker: content, **whole})


def sound(g):
    g.sound("torch_file", torch_file())
    g.sound("without_padding", plain_zip())
    g.sound("crcs_all_zero", zipped([Record(r.name, r.data, crc=0) for r in torch_records()]))
    g.sound("another_order", zipped(torch_records()[::-1], prefix="some name/"))
    short = dict_of([(short_text(n), v) for n, v in model_items().items()])
    rebuild = ("torch._utils", "_rebuild_tensor_v2")
    named = short.replace(name_of(*rebuild), stack_name(*rebuild))
    g.sound("protocol_4", torch_file(b"\x80\x04\x95" + struct.pack("<Q", len(named) + 1) + named + b"."))
    state = dict_of({"_metadata": call(ORDERED_DICT) + items_of([(text(""), dict_of({"version": integer(1)}))])})
    items = [(text(n), v) for n, v in model_items().items()]
    g.sound("ordered_dict", torch_file(pickled(call(ORDERED_DICT) + items_of(items) + state + BUILD)))
    g.sound("pairs_in_a_list", torch_file(pickled(call(ORDERED_DICT, list_of(*[tuple_of(*i) for i in items])))))
    g.sound("memo_of_2_32_minus_1", torch_file(pickled(dict_of(
        [(text(n) + b"r\xff\xff\xff\xff0j\xff\xff\xff\xff", v) for n, v in model_items().items()]))))
    parameters = {n: call(name_of("torch._utils", "_rebuild_parameter"), v, FALSE, EMPTY_HOOKS)
                  for n, v in model_items().items()}
    wrapped = dict_of({"model": dict_of(parameters), "iteration": integer(5)})
    g.sound("parameters_under_model", torch_file(pickled(wrapped)))
    one = b"".join(map(bf16, MODEL))
    views = {n: tensor("0", s, offset=8 * i, numel=24) for i, (n, s) in enumerate(MODEL.items())}
    g.sound("views_of_one_storage", torch_file(pickled(dict_of(views)), [one]))
    one_element = pickled(dict_of({"a": tensor("0", [1], [1 << 62])}))
    g.sound("stride_of_one_element", torch_file(one_element, [b"\0\0"]), "inspect")
    shared = tuple_of(NONE) + put(0) + b"".join(
        b"0" + get(i % 2) + get(i % 2) + b"\x86" + put(1 - i % 2) for i in range(60))
    g.sound("shared_60_levels", torch_file(beside(shared)))
    g.sound("list_in_itself", torch_file(beside(b"]" + put(0) + get(0) + b"a")))
    g.sound("dcp", Dcp().files())


def plain_zip():
    """As zip tools write it: sizes in the local headers, no padding, no zip64."""
    out, central, records = b"", b"", torch_records()
    for record in records:
        name, size = ("m/" + record.name).encode(), len(record.data)
        shared = struct.pack("<HHIIIIHH", 0, 0, 0x00210000, record.crc, size, size, len(name), 0)
        central += struct.pack("<IHH", 0x02014B50, 20, 20) + shared + struct.pack("<HHHII", 0, 0, 0, 0, len(out)) + name
        out += struct.pack("<IH", 0x04034B50, 20) + shared + name + record.data
    return out + central + end_records(len(records), len(central), len(out), has_zip64=False)


def write(root):
    g = Gallery(root)
    for add in (sound, hostile_names, hostile_calls, broken_opcodes, broken_lengths, bombs, broken_objects,
                broken_storages, broken_entries, broken_zips, shards, old_files, dcp_metadata, dcp_chunks, dcp_items,
                dcp_bombs, extras, trackers):
        add(g)
    g.finish("case, arguments, exit status, slug; see tests/galleries/torch_gallery.py")
