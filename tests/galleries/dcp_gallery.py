"""Broken and hostile directories of torch.distributed.checkpoint, for torch_gallery.py."""

from torch_pickles import (
    DOWN, F, FALSE, GATE, H, NONE, SHELL, UP, Record, bf16, call, dict_of, get, integer, integers, list_of, made,
    name_of, pickled, put, tensor, text, torch_file, tuple_of, zipped,
)

DCP = "torch.distributed.checkpoint.metadata"


def size_of(values):
    return call(name_of("torch", "Size"), integers(values))


def item(name, shape, raw, numel=None, kind="BFloat16Storage", crc=None, strides=None):
    pickle = pickled(tensor("0", shape, strides, numel=numel, kind=name_of("torch", kind)))
    return zipped([Record("data.pkl", pickle), Record("byteorder", b"little"), Record("data/0", raw, crc),
                   Record("version", b"3\n")])


class Dcp:
    """A checkpoint of two files whose first tensor has two chunks; any part may be changed before files()."""

    def __init__(self):
        self.tensors, self.storage = {}, []
        self.data = {"__0_0.distcp": b"", "__1_0.distcp": b""}
        self.state_extra, self.transforms, self.names = {}, {}, {}
        half = bf16(GATE)[: F * H]
        self.add(GATE, [F, H], [([0, 0], [F // 2, H]), ([F // 2, 0], [F // 2, H])],
                 [half, bf16(GATE)[F * H:]], ["__0_0.distcp", "__1_0.distcp"])
        self.add(UP, [F, H], [([0, 0], [F, H])], [bf16(UP)], ["__0_0.distcp"])
        self.add(DOWN, [H, F], [([0, 0], [H, F])], [bf16(DOWN)], ["__1_0.distcp"])

    def add(self, name, size, chunks, raws, paths):
        self.tensors[name] = {"size": size, "dtype": "bfloat16", "chunks": list(chunks)}
        for (offsets, sizes), raw, path in zip(chunks, raws, paths):
            self.append(name, offsets, path, item(name, sizes, raw))

    def append(self, name, offsets, path, content):
        entry = {"name": name, "offsets": offsets, "path": path, "begin": len(self.data[path]), "length": len(content)}
        self.data[path] += content
        self.storage.append(entry)
        return entry

    def replace(self, number, content):
        """Another item in place of one, at the end of the file."""
        old = self.storage.pop(number)
        self.append(old["name"], old["offsets"], old["path"], content)

    def entry(self, number):
        return self.storage[number]

    def tensor_metadata(self, name):
        fields = self.tensors[name]
        encoding = call(name_of(DCP, "_MEM_FORMAT_ENCODING"), integer(0))
        layout = call(name_of("torch.serialization", "_get_layout"), text("torch.strided"))
        properties = made(name_of(DCP, "TensorProperties"),
                          tuple_of(name_of("torch", fields["dtype"]), layout, FALSE, encoding, FALSE))
        chunks = [made(name_of(DCP, "ChunkStorageMetadata"), {"offsets": size_of(o), "sizes": size_of(s)})
                  for o, s in fields["chunks"]]
        return made(name_of(DCP, "TensorStorageMetadata"),
                    {"properties": properties, "size": size_of(fields["size"]), "chunks": list_of(*chunks)})

    def storage_pair(self, entry):
        key = made(name_of(DCP, "MetadataIndex"),
                   {"fqn": text(entry["name"]), "index": NONE, "offset": size_of(entry["offsets"])})
        info = {"relative_path": text(entry["path"]), "offset": integer(entry["begin"]),
                "length": integer(entry["length"])}
        if "transforms" in entry:
            info["transform_descriptors"] = list_of(*map(text, entry["transforms"]))
        return key, made(name_of("torch.distributed.checkpoint.filesystem", "_StorageInfo"), info)

    def metadata_fields(self):
        state = [(text(name), self.tensor_metadata(name)) for name in self.tensors]
        return {"state_dict_metadata": dict_of(state + list(self.state_extra.items())), "planner_data": NONE,
                "storage_data": dict_of([self.storage_pair(e) for e in self.storage]), "storage_meta": NONE,
                "version": text("1.0.0")}

    def files(self, metadata=None):
        """`metadata`: other bytes, or other fields of the object."""
        if not isinstance(metadata, bytes):
            metadata = pickled(made(name_of(DCP, "Metadata"), metadata or self.metadata_fields()))
        return {**self.data, ".metadata": metadata}


def dcp_metadata(g):
    metadata = Dcp().files()[".metadata"]
    g.directory("dcp_without_metadata", "not-supported", Dcp().data)
    g.directory("dcp_metadata_empty", "pickle-truncated", Dcp().files(b""))
    g.directory("dcp_metadata_garbage", "pickle-opcode", Dcp().files(b"\x93NUMPY garbage, not a pickle"))
    g.directory("dcp_metadata_truncated", "pickle-truncated", Dcp().files(metadata[: len(metadata) // 2]))
    g.directory("dcp_metadata_a_dict", "dcp-metadata", Dcp().files(pickled(dict_of({"a": NONE}))))
    g.directory("dcp_metadata_another_object", "dcp-metadata",
                Dcp().files(pickled(made(name_of(DCP, "StorageMeta"), {}))))
    g.directory("dcp_metadata_without_state", "dcp-metadata",
                Dcp().files(pickled(made(name_of(DCP, "Metadata")))))
    for field in ("state_dict_metadata", "storage_data"):
        left = {k: v for k, v in Dcp().metadata_fields().items() if k != field}
        g.directory(f"dcp_metadata_without_{field}", "dcp-metadata", Dcp().files(left))
        wrong = {**Dcp().metadata_fields(), field: list_of(NONE)}
        g.directory(f"dcp_metadata_{field}_a_list", "dcp-metadata", Dcp().files(wrong))
    hostile = {
        "os_system": (call(name_of("os", "system"), text(SHELL)), "pickle-global"),
        "getattr_of_os": (call(name_of("builtins", "getattr"), name_of("os", "path"), text("x")), "pickle-global"),
        "getattr_of_a_class": (call(name_of("builtins", "getattr"), name_of(DCP, "Metadata"), text("__init__")),
                               "pickle-call"),
        "a_tensor": (tensor(), "pickle-global"),
        "an_unlisted_plan": (made(name_of("megatron.training.checkpointing", "Plan")), "pickle-global"),
    }
    for name, (opcodes, slug) in hostile.items():
        fields = {**Dcp().metadata_fields(), "planner_data": opcodes}
        g.directory("dcp_metadata_holds_" + name, slug, Dcp().files(fields))
    dcp = Dcp()
    dcp.state_extra[text("odd")] = integer(3)
    g.directory("dcp_metadata_entry_a_number", "dcp-metadata", dcp.files())
    dcp = Dcp()
    dcp.state_extra[text(GATE)] = dcp.tensor_metadata(UP)
    g.directory("dcp_metadata_tensor_twice", "dcp-metadata", dcp.files())
    dcp = Dcp()
    dcp.tensors[UP]["dtype"] = "qint8"
    g.directory("dcp_metadata_dtype_quantized", "not-supported", dcp.files())
    sparse = metadata.replace(text("torch.strided"), text("torch.sparse_coo"))
    g.directory("dcp_metadata_layout_sparse", "not-supported", Dcp().files(sparse))


def dcp_chunks(g):
    def case(name, slug, change, command="inspect"):
        dcp = Dcp()
        change(dcp)
        g.directory("dcp_" + name, slug, dcp.files(), command)

    def chunks(*new):
        """Other chunks, each with an item of its own."""
        def change(dcp):
            content = item(GATE, [F // 2, H], bf16(GATE)[:F * H])
            dcp.tensors[GATE]["chunks"] = new
            dcp.storage = [entry for entry in dcp.storage if entry["name"] != GATE]
            for offsets, _ in new:
                dcp.append(GATE, offsets, "__0_0.distcp", content)
        return change

    def size(new):
        return lambda dcp: dcp.tensors[GATE].update(size=new)

    def move(number, **fields):
        return lambda dcp: dcp.entry(number).update(fields)

    low, high = ([0, 0], [2, H]), ([2, 0], [2, H])
    top = (1 << 63) - 1
    case("chunks_overlap", "chunk-overlap", chunks(([0, 0], [3, H]), high))
    case("chunks_leave_a_hole", "chunk-hole", chunks(([0, 0], [1, H]), high))
    case("chunks_none", "chunk-hole", chunks())
    case("chunk_missing", "chunk-hole", chunks(low))
    case("chunk_twice", "chunk-overlap", chunks(low, high, high))
    case("chunk_past_end", "chunk-bounds", chunks(low, ([2, 0], [3, H])))
    case("chunk_beyond", "chunk-bounds", chunks(low, ([5, 0], [2, H])))
    case("chunk_negative_offset", "dcp-metadata", chunks(([-1, 0], [3, H]), high))
    case("chunk_negative_size", "dcp-metadata", chunks(low, ([2, 0], [-2, H])))
    case("chunk_offset_2_63_minus_1", "chunk-bounds", chunks(low, ([top, 0], [2, H])))
    case("chunk_size_2_63_minus_1", "chunk-bounds", chunks(low, ([2, 0], [top, H])))
    case("chunk_of_another_rank", "chunk-bounds", chunks(low, ([2], [2])))
    case("chunk_of_two_ranks", "chunk-bounds", chunks(low, ([2, 0], [2, H, 1])))
    case("chunks_diagonal", "chunk-hole", chunks(([0, 0], [2, 1]), ([2, 1], [2, 1])))
    case("size_2_64", "shape-overflow", size([1 << 32, 1 << 32]))
    case("size_negative", "dcp-metadata", size([-F, -H]))
    case("size_greater", "chunk-hole", size([F + 1, H]))
    case("size_less", "chunk-bounds", size([F - 1, H]))

    case("storage_missing", "dcp-metadata", lambda dcp: dcp.storage.pop(1))
    case("storage_twice", "dcp-metadata", lambda dcp: dcp.storage.append(dict(dcp.storage[1])))
    case("storage_of_no_chunk", "dcp-metadata", lambda dcp: dcp.storage.append({**dcp.storage[1], "offsets": [1, 0]}))
    case("storage_of_no_tensor", "dcp-metadata", lambda dcp: dcp.storage.append({**dcp.storage[1], "name": "gone"}))
    case("file_missing", "dcp-missing-file", lambda dcp: dcp.data.pop("__1_0.distcp"))
    case("file_cut", "dcp-item-range",
         lambda dcp: dcp.data.update({"__1_0.distcp": dcp.data["__1_0.distcp"][:-1]}))
    case("file_empty", "dcp-item-range", lambda dcp: dcp.data.update({"__1_0.distcp": b""}))
    for name, path in {"parent": "../__0_0.distcp", "inner_parent": "a/../../__0_0.distcp", "absolute": "/etc/passwd",
                       "empty": "", "nul": "__0_0.distcp\0"}.items():
        case("path_" + name, "index-path", move(2, path=path))
    case("path_of_the_directory", "not-supported", move(2, path="."))
    case("item_past_end", "dcp-item-range", move(2, length=1 << 40))
    case("item_begins_past_end", "dcp-item-range", move(2, begin=1 << 40))
    case("item_offset_negative", "dcp-metadata", move(2, begin=-1))
    case("item_length_negative", "dcp-metadata", move(2, length=-1))
    case("item_end_overflows", "dcp-metadata", move(2, begin=top, length=top))
    case("items_overlap", "dcp-item-overlap", lambda dcp: dcp.entry(2).update(begin=dcp.entry(2)["begin"] - 1))
    case("items_the_same", "dcp-item-overlap",
         lambda dcp: dcp.entry(2).update(begin=dcp.entry(0)["begin"], length=dcp.entry(0)["length"]))
    case("item_transformed", "not-supported", move(2, transforms=["zstd"]))


def dcp_items(g):
    raw = bf16(UP)

    def case(name, slug, content):
        dcp = Dcp()
        dcp.replace(2, content)
        g.directory("dcp_item_" + name, slug, dcp.files(), "digest")

    case("of_another_shape", "dcp-item-mismatch", item(UP, [H, F], raw))
    case("of_another_rank", "dcp-item-mismatch", item(UP, [1, F, H], raw))
    case("of_fewer_rows", "dcp-item-mismatch", item(UP, [F - 1, H], raw, numel=8))
    case("of_another_dtype", "dcp-item-mismatch", item(UP, [F, H], raw, kind="HalfStorage"))
    case("of_a_wider_dtype", "dcp-item-mismatch", item(UP, [F, H], raw * 2, kind="FloatStorage"))
    case("crc", "zip-crc", item(UP, [F, H], raw, crc=0x12345678))
    case("storage_too_short", "torch-storage", item(UP, [F, H], raw[:-2]))
    case("tensor_past_storage", "torch-strides", item(UP, [F, H], raw[:-2], numel=7))
    case("a_dict", "dcp-item-mismatch", torch_file(pickled(dict_of({"a": tensor()})), [raw]))
    case("no_zip", "zip-directory", b"\0" * 600)
    case("empty", "zip-directory", b"")
    case("cut", "zip-directory", item(UP, [F, H], raw)[:-1])
    case("with_a_tail", "zip-directory", item(UP, [F, H], raw) + b"\0")
    case("hostile", "pickle-global", torch_file(pickled(call(name_of("os", "system"), text(SHELL))), [raw]))


def dcp_bombs(g):
    dcp = Dcp()
    chunk = made(name_of(DCP, "ChunkStorageMetadata"), {"offsets": size_of([0, 0]), "sizes": size_of([F, H])})
    many = chunk + put(0) + b"0](" + get(0) * 1000 + b"e" + put(1) + b"0"
    tensor_metadata = dcp.tensor_metadata(UP).replace(list_of(chunk), get(1)) + put(2) + b"0"
    fields = dcp.metadata_fields()
    tensors = dict_of([(text(f"{i:x}"), get(2)) for i in range(2000)])
    g.directory("dcp_bomb_of_chunks", "dcp-metadata",
                dcp.files(pickled(many + tensor_metadata +
                                  made(name_of(DCP, "Metadata"), {**fields, "state_dict_metadata": tensors}))))
    long_path = b"(" + text("k") * 2000 + b"t" + put(0) + b"0"
    paths = dict_of([(text(f"{i:x}"), get(0)) for i in range(2000)])
    g.directory("dcp_bomb_of_paths", "dcp-metadata",
                dcp.files(pickled(long_path + made(name_of(DCP, "Metadata"), {**fields, "planner_data": paths}))))
    long_name = text("k" * 16384) + put(0) + b"0"
    one = made(name_of(DCP, "BytesStorageMetadata"))
    named = dict_of([(get(0), one + put(1))] + [(get(0), get(1))] * 8000)
    fields["state_dict_metadata"] = named
    g.directory("dcp_bomb_of_names", "dcp-metadata",
                dcp.files(pickled(long_name + made(name_of(DCP, "Metadata"), fields))))
