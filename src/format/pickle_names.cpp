/// The names that a pickle may hold. What is not here is refused; nothing here is ever looked up or run either,
/// so the list says what a checkpoint plausibly holds, not what would be safe to call.

#include <algorithm>
#include <cctype>

#include "format/pickle_graph.hpp"

namespace glu_ckpt {

namespace {

enum Files : unsigned { kTorch = 1, kDcp = 2, kBoth = kTorch | kDcp };

struct NameRow {
  std::string_view module;
  /// Separated by single spaces.
  std::string_view names;
  NameUse use;
  unsigned files;
};

constexpr std::string_view kStorages =
    "DoubleStorage FloatStorage HalfStorage BFloat16Storage LongStorage IntStorage ShortStorage CharStorage "
    "ByteStorage BoolStorage ComplexFloatStorage ComplexDoubleStorage QInt8Storage QUInt8Storage QInt32Storage "
    "QUInt4x2Storage QUInt2x4Storage";
constexpr std::string_view kNumpyArrays = "_reconstruct scalar";
constexpr std::string_view kPaths =
    "Path PurePath PosixPath PurePosixPath WindowsPath PureWindowsPath";  // datasets' paths in args
constexpr std::string_view kBuiltins =
    "set frozenset bytearray complex slice range list dict tuple int float str bool bytes object";
constexpr std::string_view kCheckpointMetadata =
    "Metadata TensorStorageMetadata ChunkStorageMetadata BytesStorageMetadata TensorProperties _MEM_FORMAT_ENCODING "
    "MEM_FORMAT_ENCODING MetadataIndex StorageMeta";
constexpr std::string_view kPlans =
    "SavePlan WriteItem WriteItemType TensorWriteData BytesIOWriteData LoadPlan ReadItem LoadItemType";

constexpr NameRow kNames[] = {
    // tensors
    {"torch",
     "float64 double float32 float float16 half bfloat16 int64 long int32 int int16 short int8 uint8 uint16 uint32 "
     "uint64 bool complex32 chalf complex64 cfloat complex128 cdouble float8_e4m3fn float8_e5m2 float8_e4m3fnuz "
     "float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2 qint8 quint8 qint32 quint4x2 quint2x4 bits1x8 bits2x4 bits4x2 "
     "bits8 bits16 uint1 uint2 uint3 uint4 uint5 uint6 uint7 int1 int2 int3 int4 int5 int6 int7",
     NameUse::Value, kBoth},
    {"torch", "strided contiguous_format channels_last preserve_format", NameUse::Value, kBoth},
    {"torch", kStorages, NameUse::Value, kTorch},
    {"torch.cuda", kStorages, NameUse::Value, kTorch},
    {"torch.storage", "UntypedStorage TypedStorage _LegacyStorage", NameUse::Value, kTorch},
    {"torch",
     "per_tensor_affine per_tensor_symmetric per_channel_affine per_channel_symmetric per_channel_affine_float_qparams",
     NameUse::Value, kTorch},
    {"torch", "Size device", NameUse::Callable, kBoth},
    {"torch", "Tensor", NameUse::Callable, kTorch},
    {"torch._utils",
     "_rebuild_tensor _rebuild_tensor_v2 _rebuild_tensor_v3 _rebuild_parameter _rebuild_parameter_with_state "
     "_rebuild_qtensor _rebuild_meta_tensor_no_storage _rebuild_wrapper_subclass",
     NameUse::Callable, kTorch},
    {"torch._tensor", "_rebuild_from_type_v2", NameUse::Callable, kTorch},
    {"torch.tensor", "_rebuild_from_type_v2", NameUse::Callable, kTorch},
    {"torch.nn.parameter", "Parameter Buffer", NameUse::Callable, kTorch},
    {"torch.serialization", "_get_layout", NameUse::Callable, kBoth},

    // plain Python values; protocol 2 spells builtins and copyreg as Python 2 did
    {"collections", "OrderedDict defaultdict Counter deque", NameUse::Callable, kBoth},
    {"builtins", kBuiltins, NameUse::Callable, kBoth},
    {"__builtin__", kBuiltins, NameUse::Callable, kBoth},
    {"__builtin__", "xrange long unicode", NameUse::Callable, kBoth},
    {"copyreg", "_reconstructor", NameUse::Callable, kBoth},
    {"copy_reg", "_reconstructor", NameUse::Callable, kBoth},
    {"_codecs", "encode", NameUse::Callable, kBoth},
    {"io", "BytesIO", NameUse::Callable, kTorch},
    {"_io", "BytesIO", NameUse::Callable, kTorch},
    {"pathlib", kPaths, NameUse::Callable, kBoth},
    {"pathlib._local", kPaths, NameUse::Callable, kBoth},
    {"datetime", "datetime timedelta date timezone", NameUse::Callable, kBoth},
    {"uuid", "UUID SafeUUID", NameUse::Callable, kBoth},
    {"types", "SimpleNamespace", NameUse::Callable, kTorch},
    {"argparse", "Namespace", NameUse::Callable, kTorch},
    {"signal", "Signals", NameUse::Callable, kTorch},

    // numpy: states of random generators, scalars among the arguments of a run
    {"numpy.core.multiarray", kNumpyArrays, NameUse::Callable, kTorch},
    {"numpy._core.multiarray", kNumpyArrays, NameUse::Callable, kTorch},
    {"numpy.core.numeric", "_frombuffer", NameUse::Callable, kTorch},
    {"numpy._core.numeric", "_frombuffer", NameUse::Callable, kTorch},
    {"numpy",
     "ndarray dtype bool_ bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 longdouble "
     "complex64 complex128 intc intp longlong uintc uintp ulonglong str_ bytes_",
     NameUse::Callable, kTorch},

    // activation functions, which Megatron's configuration holds
    {"torch.nn.functional",
     "gelu silu relu relu6 elu celu selu mish softplus softsign sigmoid tanh leaky_relu logsigmoid glu hardtanh "
     "hardswish hardsigmoid softmax log_softmax",
     NameUse::Value, kTorch},
    {"torch._C._nn", "gelu silu relu6 elu mish softplus leaky_relu glu hardtanh hardswish hardsigmoid log_sigmoid",
     NameUse::Value, kTorch},
    {"torch", "tanh sigmoid relu selu celu softmax", NameUse::Value, kTorch},

    // .metadata; the paths under _shard are those of torch before 2.3
    {"torch.distributed.checkpoint.metadata", kCheckpointMetadata, NameUse::Callable, kDcp},
    {"torch.distributed._shard.checkpoint.metadata", kCheckpointMetadata, NameUse::Callable, kDcp},
    {"torch.distributed._shard.sharded_tensor.metadata", "TensorProperties MEM_FORMAT_ENCODING ShardedTensorMetadata",
     NameUse::Callable, kDcp},
    {"torch.distributed._shard.metadata", "ShardMetadata", NameUse::Callable, kDcp},
    {"torch.distributed.remote_device", "_remote_device", NameUse::Callable, kDcp},
    {"torch.distributed.checkpoint.filesystem", "_StorageInfo _StoragePrefix SerializationFormat", NameUse::Callable,
     kDcp},
    {"torch.distributed._shard.checkpoint.filesystem", "_StorageInfo _StoragePrefix", NameUse::Callable, kDcp},
    {"torch.distributed.checkpoint.hf_storage", "_HFStorageInfo", NameUse::Callable, kDcp},
    {"torch.distributed.checkpoint._hf_utils", "_HFStorageInfo", NameUse::Callable, kDcp},
    {"torch.distributed.checkpoint.planner", kPlans, NameUse::Callable, kDcp},
    {"torch.distributed._shard.checkpoint.planner", kPlans, NameUse::Callable, kDcp},
    // read_pickle lets it through in one form only: getattr(an enum of the list, a string)
    {"builtins", "getattr", NameUse::Value, kDcp},
    {"__builtin__", "getattr", NameUse::Value, kDcp},
};

bool contains_word(std::string_view words, std::string_view word) {
  if (word.empty() || word.find(' ') != std::string_view::npos) return false;
  for (std::size_t at = words.find(word); at != std::string_view::npos; at = words.find(word, at + 1)) {
    const std::size_t end = at + word.size();
    const bool begins = at == 0 || words[at - 1] == ' ';
    if (begins && (end == words.size() || words[end] == ' ')) return true;
  }
  return false;
}

bool is_identifier(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(),
                                      [](unsigned char c) { return c == '_' || (c < 0x80 && std::isalnum(c) != 0); });
}

bool is_class_like(std::string_view name) {
  const std::size_t first = name.find_first_not_of('_');
  return first != std::string_view::npos && name[first] >= 'A' && name[first] <= 'Z';
}

/// Megatron's own enums, dataclasses and activation functions are too many, and move too often, for a list.
NameUse megatron_use(unsigned files, std::string_view module, std::string_view name) {
  if (!is_identifier(name)) return NameUse::Refused;  // "A.b" would be an attribute of A
  if (files == kDcp) {
    const bool plan = module.starts_with("megatron.core.dist_checkpointing.");
    return plan && is_class_like(name) ? NameUse::Callable : NameUse::Refused;
  }
  if (module == "transformer_engine.common.recipe" || module.starts_with("megatron.")) {
    if (is_class_like(name)) return NameUse::Callable;
    if (module.starts_with("megatron.core.")) return NameUse::Value;
  }
  return NameUse::Refused;
}

bool is_module_path(std::string_view module) {
  return std::all_of(module.begin(), module.end(),
                     [](char c) { return c == '.' || is_identifier(std::string_view(&c, 1)); });
}

}  // namespace

NameUse name_use(PickleNames names, std::string_view module, std::string_view name) {
  if (names == PickleNames::Any) return NameUse::Callable;
  const unsigned files = names == PickleNames::Torch ? kTorch : kDcp;
  for (const NameRow& row : kNames)
    if ((row.files & files) != 0 && row.module == module && contains_word(row.names, name)) return row.use;
  return is_module_path(module) ? megatron_use(files, module, name) : NameUse::Refused;
}

}  // namespace glu_ckpt
