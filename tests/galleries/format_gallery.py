"""Broken safetensors files and directories: one checkpoint per way to be broken, and manifest.tsv.

Each line of the manifest: path, slug of the error that opening it must give, exit status.
"""

import json
import pathlib
import shutil
import struct

ROOT = pathlib.Path()  # what write() is given
BROKEN_INPUT = 3
manifest = []


def entry(dtype="F32", shape=(2,), begin=0, end=8):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def shard(header, data=b"\0" * 8, length=None):
    """Bytes of a shard; `header` is an object, or JSON text or bytes to be taken as they are."""
    if isinstance(header, dict):
        header = json.dumps(header, separators=(",", ":"))
    if isinstance(header, str):
        header = header.encode()
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def file(name, slug, content):
    (ROOT / f"{name}.safetensors").write_bytes(content)
    manifest.append((f"{name}.safetensors", slug))


def directory(name, slug, files):
    for path, content in files.items():
        target = ROOT / name / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if not isinstance(content, bytes):
            content = (content if isinstance(content, str) else json.dumps(content, indent=2)).encode()
        target.write_bytes(content)
    manifest.append((name, slug))


def one(name="a", **fields):
    return {name: entry(**fields)}


def raw_entry(dtype='"F32"', shape="[2]", offsets="[0,8]"):
    return f'{{"a":{{"dtype":{dtype},"shape":{shape},"data_offsets":{offsets}}}}}'


def write_truncated():
    whole = shard(one())
    header_end = len(whole) - 8
    file("truncated_to_0_bytes", "header-too-small", b"")
    file("truncated_to_7_bytes", "header-too-small", whole[:7])
    file("truncated_after_length", "header-length", whole[:8])
    file("truncated_in_header", "header-length", whole[: header_end // 2])
    file("truncated_before_header_end", "header-length", whole[: header_end - 1])
    file("truncated_after_header", "offsets-past-end", whole[:header_end])
    file("truncated_in_data", "offsets-past-end", whole[:-3])


def write_lengths():
    file("length_0", "header-json", shard("", b""))
    file("length_0_with_data", "header-json", shard("", b"\0" * 8))
    file("length_1", "header-json", shard("{", b""))
    file("length_2_63", "header-too-large", shard(one(), length=1 << 63))
    file("length_2_64_minus_1", "header-too-large", shard(one(), length=(1 << 64) - 1))
    file("length_over_100_mb", "header-too-large", shard(one(), length=100_000_001))
    file("length_past_end", "header-length", shard(one(), length=1000))
    file("length_one_past_end", "header-length", shard("{} ", b"", length=4))
    file("length_cuts_json", "header-json", shard(one(), length=20))


def write_json():
    file("not_utf8", "header-utf8", shard(b'{"\xff\xfe":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'))
    file("utf8_surrogate", "header-utf8", shard(b'{"\xed\xa0\x80":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'))
    file("lone_surrogate_escape", "header-json", shard(raw_entry().replace('"a"', '"\\udc00"')))
    file("not_json", "header-json", shard("tensors: none", b""))
    file("array_not_object", "header-json", shard("[]", b""))
    file("string_not_object", "header-json", shard('"a"', b""))
    file("trailing_text", "header-json", shard("{} x", b""))
    file("trailing_nul", "header-json", shard("{}\0\0\0\0\0\0", b""))
    file("two_objects", "header-json", shard("{}{}", b""))
    file("unclosed", "header-json", shard('{"a":{', b""))
    file("trailing_comma", "header-json", shard("{},", b""))
    file("single_quotes", "header-json", shard(raw_entry().replace('"', "'")))
    file("control_character_in_name", "header-json", shard(raw_entry().replace('"a"', '"a\n"')))
    file("nested_9_deep", "header-depth", shard('{"a":' + "[" * 9 + "]" * 9 + "}", b""))
    file("nested_50000_deep", "header-depth", shard('{"a":' + "[" * 50_000 + "]" * 50_000 + "}", b""))
    file("unclosed_100000_deep", "header-json", shard("[" * 100_000, b""))


def write_fields():
    complete = entry()
    for field in complete:
        left = {key: value for key, value in complete.items() if key != field}
        file(f"missing_{field}", "header-field", shard({"a": left}))
    file("entry_not_object", "header-field", shard('{"a":[]}', b""))
    file("entry_null", "header-field", shard('{"a":null}', b""))
    file("dtype_not_string", "header-field", shard(raw_entry(dtype="7")))
    file("shape_not_array", "header-field", shard(raw_entry(shape="2")))
    file("shape_of_strings", "header-field", shard(raw_entry(shape='["2"]')))
    file("shape_of_null", "header-field", shard(raw_entry(shape="[null]")))
    file("shape_of_bool", "header-field", shard(raw_entry(shape="[true]")))
    file("offsets_of_one", "header-field", shard(raw_entry(offsets="[8]")))
    file("offsets_of_three", "header-field", shard(raw_entry(offsets="[0,4,8]")))
    file("offsets_not_array", "header-field", shard(raw_entry(offsets='"0-8"')))
    file("dtype_unknown", "dtype-unknown", shard(one(dtype="F128")))
    file("dtype_lower_case", "dtype-unknown", shard(one(dtype="f32")))
    file("metadata_not_object", "metadata-not-string", shard('{"__metadata__":["pt"]}', b""))
    file("metadata_of_numbers", "metadata-not-string", shard('{"__metadata__":{"step":7}}', b""))
    file("metadata_of_null", "metadata-not-string", shard('{"__metadata__":{"step":null}}', b""))
    file("metadata_nested", "metadata-not-string", shard('{"__metadata__":{"a":{"b":"c"}}}', b""))


def write_duplicates():
    inner = raw_entry()[5:-1]
    file("duplicate_tensor", "duplicate-key", shard(f'{{"a":{inner},"a":{inner}}}'))
    file("duplicate_tensor_escaped", "duplicate-key", shard(f'{{"a":{inner},"\\u0061":{inner}}}'))
    file("duplicate_field", "duplicate-key", shard(raw_entry(dtype='"F32","dtype":"F32"')))
    file("duplicate_offsets", "duplicate-key", shard(raw_entry(offsets='[0,8],"data_offsets":[0,8]')))
    file("duplicate_metadata", "duplicate-key", shard('{"__metadata__":{},"__metadata__":{}}', b""))
    file("duplicate_metadata_key", "duplicate-key", shard('{"__metadata__":{"a":"1","a":"2"}}', b""))


def write_numbers():
    numbers = {
        "exponent": "1e3",
        "negative": "-1",
        "fraction": "1.5",
        "whole_fraction": "2.0",
        "2_63": str(1 << 63),
        "2_64": str(1 << 64),
        "400_digits": "9" * 400,
        "infinite": "1e999",
    }
    for name, number in numbers.items():
        file(f"dim_{name}", "bad-number", shard(raw_entry(shape=f"[{number}]")))
        file(f"offset_{name}", "bad-number", shard(raw_entry(offsets=f"[0,{number}]")))


def write_offsets():
    file("offsets_reversed", "offsets-reversed", shard(one(begin=8, end=0)))
    file("offsets_past_end", "offsets-past-end", shard(one(begin=0, end=16, shape=(4,))))
    file("offsets_far_past_end", "offsets-past-end", shard(one(begin=0, end=(1 << 63) - 1)))
    file("trailing_bytes", "trailing-bytes", shard(one(), b"\0" * 9))
    file("trailing_bytes_without_tensors", "trailing-bytes", shard({}, b"\0"))
    file("hole_at_start", "offsets-hole", shard(one(begin=8, end=16), b"\0" * 16))
    hole = {"a": entry(), "b": entry(begin=12, end=20)}
    file("hole_in_the_middle", "offsets-hole", shard(hole, b"\0" * 20))
    overlap = {"a": entry(), "b": entry(begin=4, end=12)}
    file("overlap", "offsets-overlap", shard(overlap, b"\0" * 12))
    file("same_range_twice", "offsets-overlap", shard({"a": entry(), "b": entry()}))
    inside = {"a": entry(), "b": entry(shape=(0,), begin=4, end=4)}
    file("empty_tensor_inside_another", "offsets-overlap", shard(inside))


def write_sizes():
    file("dtype_disagrees_with_size", "size-mismatch", shard(one(dtype="BF16")))
    file("shape_disagrees_with_size", "size-mismatch", shard(one(shape=(3,))))
    file("scalar_disagrees_with_size", "size-mismatch", shard(one(shape=())))
    file("empty_disagrees_with_size", "size-mismatch", shard(one(shape=(0,))))
    file("shape_overflow", "shape-overflow", shard(one(shape=(1 << 32, 1 << 32))))
    file("shape_overflow_in_bits", "shape-overflow", shard(one(dtype="F64", shape=(1 << 58,))))
    file("shape_overflow_before_zero", "shape-overflow", shard(one(shape=(1 << 32, 1 << 32, 0), end=0), b""))
    file("sub_byte_half", "sub-byte-shape", shard(one(dtype="F4", shape=(15,))))
    file("sub_byte_f6", "sub-byte-shape", shard(one(dtype="F6_E2M3", shape=(3,), end=2), b"\0" * 2))


def index(weight_map):
    return {"metadata": {"total_size": 16}, "weight_map": weight_map}


def write_indexes():
    name = "model.safetensors.index.json"
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    shards = {first: shard(one("a")), second: shard(one("b"))}
    right = index({"a": first, "b": second})
    directory("index_missing_shard", "index-missing-shard", {name: right, first: shards[first]})
    directory("index_parent_path", "index-path", {name: index({"a": f"../{first}", "b": second}), **shards})
    directory("index_hidden_parent_path", "index-path", {name: index({"a": f"x/../../{first}"}), **shards})
    directory("index_absolute_path", "index-path", {name: index({"a": "/etc/passwd", "b": second}), **shards})
    directory("index_empty_path", "index-path", {name: index({"a": "", "b": second}), **shards})
    directory("index_nul_path", "index-path", {name: index({"a": f"{first}\0", "b": second}), **shards})
    twice = f'{{"weight_map":{{"a":"{first}","b":"{second}","a":"{second}"}}}}'
    directory("index_key_in_two_shards", "duplicate-key", {name: twice, **shards})
    directory("index_two_maps", "duplicate-key", {name: '{"weight_map":{},"weight_map":{}}', **shards})
    directory("index_stale_key", "index-stale", {name: index({"a": first, "b": second, "c": second}), **shards})
    directory("index_wrong_shard", "index-stale", {name: index({"a": second, "b": first}), **shards})
    more = shard({"b": entry(), "c": entry(begin=8, end=16)}, b"\0" * 16)
    directory("index_unlisted_tensor", "index-incomplete", {name: right, first: shards[first], second: more})
    both = shard({"a": entry(), "b": entry(begin=8, end=16)}, b"\0" * 16)
    directory("index_tensor_also_elsewhere", "duplicate-key", {name: right, first: shards[first], second: both})
    directory("index_not_json", "index-json", {name: "weights", **shards})
    directory("index_not_object", "index-json", {name: [], **shards})
    directory("index_without_map", "index-json", {name: {"metadata": {}}, **shards})
    directory("index_map_not_object", "index-json", {name: {"weight_map": [first]}, **shards})
    directory("index_shard_not_string", "index-json", {name: index({"a": 1, "b": second}), **shards})
    deep = '{"metadata":' + "[" * 100 + "]" * 100 + ',"weight_map":{}}'
    directory("index_nested_deep", "index-json", {name: deep, **shards})
    directory("same_tensor_in_two_files", "duplicate-key", {"x.safetensors": shard(one()), "y.safetensors": shard(one())})
    directory("shard_truncated", "offsets-past-end", {name: right, first: shards[first][:-1], second: shards[second]})


def write_directories():
    model = {"model.safetensors": shard(one())}
    directory("config_not_json", "config-json", {"config.json": "model_type: qwen3_moe", **model})
    directory("config_not_object", "config-json", {"config.json": "[]", **model})
    directory("config_empty", "config-json", {"config.json": "", **model})
    directory("config_model_type_not_string", "config-json", {"config.json": {"model_type": 3}, **model})
    directory("config_nested_deep", "config-json", {"config.json": '{"a":' + "[" * 100 + "]" * 100 + "}", **model})
    directory("record_not_json", "record-invalid", {"glu_ckpt.json": "glu", **model})
    directory("record_not_object", "record-invalid", {"glu_ckpt.json": "[]", **model})
    directory("record_field_not_string", "record-invalid", {"glu_ckpt.json": {"glu": 32}, **model})
    directory("record_files_not_array", "record-invalid", {"glu_ckpt.json": {"files": 1}, **model})
    marked = shard({"__metadata__": {"glu_ckpt.glu": "contiguous"}, **one()})
    interleaved = {"glu_ckpt.json": {"glu": "interleaved:32"}}
    directory("record_contradicts", "record-contradicts", {"model.safetensors": marked, **interleaved})
    directory("no_checkpoint", "not-supported", {"readme.txt": "nothing here\n"})
    directory("other_format", "not-supported", {"model.gguf": b"GGUF", "config.json": {}})


def write(root):
    global ROOT
    ROOT = root
    shutil.rmtree(ROOT, ignore_errors=True)
    ROOT.mkdir(parents=True)
    write_truncated()
    write_lengths()
    write_json()
    write_fields()
    write_duplicates()
    write_numbers()
    write_offsets()
    write_sizes()
    write_indexes()
    write_directories()
    lines = [f"{path}\t{slug}\t{BROKEN_INPUT}\n" for path, slug in sorted(manifest)]
    (ROOT / "manifest.tsv").write_text("".join(lines))
