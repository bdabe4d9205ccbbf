#include "format/torch_tensor.hpp"

#include <algorithm>

#include "core/checked_math.hpp"
#include "core/fail.hpp"

namespace glu_ckpt {
namespace {

constexpr std::string_view kUtils = "torch._utils";
constexpr std::size_t kMaxTensorAxes = 64;
/// A tensor whose elements share storage (expand()) is a bomb rather than a view where it has more bytes than this.
constexpr i64 kMaxExpandedBytes = i64{1} << 30;

struct TensorReader {
  const PickleGraph& graph;
  /// All of the tensor, which an error is about where no part of it is.
  const PickleRef root;
  const InputPart& part;
  const std::string& name;

  WhereAt where(PickleRef node) const {
    const std::optional<i64> own = graph.position(node);
    return {part, own ? own : graph.position(root), name};
  }

  [[noreturn]] void fail_object(PickleRef node, std::string_view what) const {
    fail_at(ErrorCode::TorchObject, where(node), "'{}': {}", name, what);
  }

  [[noreturn]] void fail_kind(PickleRef node, std::string_view what) const {
    fail_at(ErrorCode::NotSupported, where(node),
            "'{}' is {}, which is not supported; save it as a plain tensor (dequantized, dense, gathered)", name, what);
  }

  std::vector<PickleRef> tuple(PickleRef node, std::size_t at_least) const {
    if (graph.kind(node) != PickleKind::Tuple) fail_object(node, "arguments are no tuple");
    std::vector<PickleRef> items = graph.items(node);
    if (items.size() < at_least) fail_object(node, "too few arguments");
    return items;
  }

  i64 integer(PickleRef node) const {
    if (graph.kind(node) != PickleKind::Int) fail_object(node, "a number is no integer");
    return graph.integer(node);
  }

  TorchTensor read() const {
    if (graph.kind(root) != PickleKind::Call) fail_object(root, "is no tensor");
    return rebuild(graph.function(root), graph.arguments(root), 0);
  }

  TorchTensor rebuild(PickleRef function, PickleRef arguments, int depth) const {
    constexpr int kMaxWrappers = 4;
    if (depth > kMaxWrappers || graph.kind(function) != PickleKind::Global) fail_object(arguments, "is no tensor");
    const std::string_view how = graph.name(function);
    if (how == "_rebuild_tensor_v2" || how == "_rebuild_tensor_v3" || how == "_rebuild_tensor")
      return read_call(how, tuple(arguments, how == "_rebuild_tensor_v3" ? 7 : 4));
    if (how == "_rebuild_parameter" || how == "_rebuild_parameter_with_state") {
      const PickleRef inner = tuple(arguments, 1)[0];
      if (graph.kind(inner) != PickleKind::Call) fail_object(inner, "is a parameter of something else than a tensor");
      return rebuild(graph.function(inner), graph.arguments(inner), depth + 1);
    }
    if (how == "_rebuild_from_type_v2") {
      const auto items = tuple(arguments, 3);
      const PickleRef type = items[1];
      const bool plain = is_global(graph, type, "torch", "Tensor") ||
                         is_global(graph, type, "torch.nn.parameter", "Parameter") ||
                         is_global(graph, type, "torch.nn.parameter", "Buffer");
      if (plain) return rebuild(items[0], items[2], depth + 1);
      if (graph.kind(type) == PickleKind::Global)
        fail_kind(arguments, fmt::format("a {}.{}", graph.module(type), graph.name(type)));
    }
    fail_kind(arguments, fmt::format("rebuilt by {}.{}", graph.module(function), how));
  }

  TorchTensor read_call(std::string_view how, const std::vector<PickleRef>& items) const {
    TorchTensor tensor;
    const TorchDtype* dtype = read_storage(items[0], tensor);
    if (how == "_rebuild_tensor_v3") {
      const PickleRef named = items[6];
      if (graph.kind(named) != PickleKind::Global || graph.module(named) != "torch")
        fail_object(named, "dtype is no dtype");
      dtype = torch_dtype_named(graph.name(named));
      if (dtype == nullptr) fail_kind(named, fmt::format("of dtype {}", graph.name(named)));
    }
    if (dtype == nullptr) fail_kind(items[0], "in an untyped storage without a dtype");
    // {'neg': True} or {'conj': True}: the storage does not hold the numbers themselves.
    const std::size_t facts = how == "_rebuild_tensor_v3" ? 7 : 6;
    if (items.size() > facts && graph.kind(items[facts]) == PickleKind::Dict && !graph.items(items[facts]).empty())
      fail_kind(items[facts], "a view that negates or conjugates its storage");
    tensor.dtype = dtype->dtype;
    tensor.shape = read_integers(graph, items[2], part, name);
    tensor.strides = read_integers(graph, items[3], part, name);
    tensor.offset = integer(items[1]);
    check_geometry(tensor, dtype->element_bytes);
    return tensor;
  }

  /// ('storage', type, key, location, numel[, view]): returns the dtype of a typed storage.
  const TorchDtype* read_storage(PickleRef node, TorchTensor& tensor) const {
    if (graph.kind(node) != PickleKind::Persistent) fail_object(node, "storage is no persistent id");
    const auto items = tuple(graph.arguments(node), 5);
    if (graph.kind(items[0]) != PickleKind::String || graph.text(items[0]) != "storage" ||
        graph.kind(items[1]) != PickleKind::Global || graph.kind(items[2]) != PickleKind::String)
      fail_object(node, "storage is no ('storage', type, key, location, size)");
    if (items.size() > 5 && graph.kind(items[5]) != PickleKind::None)
      fail_kind(node, "a view of a storage in an old file");
    tensor.storage = graph.text(items[2]);
    const i64 count = integer(items[4]);
    const std::string_view type = graph.name(items[1]);
    const TorchDtype* dtype = torch_dtype_of_storage(type);
    if (dtype == nullptr && type != "UntypedStorage") fail_kind(node, fmt::format("in a {}", type));
    const auto bytes = checked_mul(count, dtype == nullptr ? 1 : dtype->element_bytes);
    if (count < 0 || !bytes)
      fail_at(ErrorCode::TorchStorage, where(items[4]), "'{}': a storage of {} elements", name, count);
    tensor.storage_bytes = *bytes;
    tensor.storage_unit = dtype == nullptr ? 1 : dtype->element_bytes;
    return dtype;
  }

  [[noreturn]] void fail_strides(const TorchTensor& tensor, i64 element_bytes) const {
    fail_at(
        ErrorCode::TorchStrides, where(root),
        "'{}' of shape {}, strides {}, offset {} and {} bytes an element does not lie within its storage of {} bytes",
        name, shape_text(tensor.shape), shape_text(tensor.strides), tensor.offset, element_bytes, tensor.storage_bytes);
  }

  /// Turns strides and offset into bytes and checks that the last element is in the storage.
  void check_geometry(TorchTensor& tensor, i64 element_bytes) const {
    if (tensor.strides.size() != tensor.shape.size()) fail_strides(tensor, element_bytes);
    if (tensor.shape.size() > kMaxTensorAxes)
      fail_at(ErrorCode::TorchStrides, where(root), "'{}' has {} axes; torch has at most {}", name, tensor.shape.size(),
              kMaxTensorAxes);
    const auto count = checked_product(tensor.shape);
    const auto bytes = count ? checked_mul(*count, element_bytes) : std::nullopt;
    if (!bytes || std::ranges::any_of(tensor.shape, [](i64 extent) { return extent < 0; }))
      fail_at(ErrorCode::ShapeOverflow, where(root), "'{}' has the impossible shape {}", name,
              shape_text(tensor.shape));
    std::optional<i64> last = tensor.offset;
    for (std::size_t axis = 0; axis < tensor.shape.size(); ++axis) {
      if (tensor.strides[axis] < 0) fail_strides(tensor, element_bytes);
      const auto span = checked_mul(std::max<i64>(0, tensor.shape[axis] - 1), tensor.strides[axis]);
      last = last && span ? checked_add(*last, *span) : std::nullopt;
    }
    const auto end = last ? checked_add(*last, *bytes == 0 ? 0 : 1) : std::nullopt;
    const auto end_bytes = end ? checked_mul(*end, element_bytes) : std::nullopt;
    const bool fits = end_bytes && (*bytes == 0 || *end_bytes <= tensor.storage_bytes);
    if (tensor.offset < 0 || !fits || (*bytes > tensor.storage_bytes && *bytes > kMaxExpandedBytes))
      fail_strides(tensor, element_bytes);
    if (*bytes == 0) {
      tensor.offset = 0;
      std::ranges::fill(tensor.strides, 0);
    }
    tensor.offset *= element_bytes;
    // The stride of an axis of one element is never used, and may be anything.
    for (std::size_t axis = 0; axis < tensor.shape.size(); ++axis)
      tensor.strides[axis] = tensor.shape[axis] > 1 ? tensor.strides[axis] * element_bytes : element_bytes;
  }
};

}  // namespace

i64 TorchTensor::bytes() const {
  i64 bytes = torch_dtype(dtype)->element_bytes;
  for (const i64 extent : shape) bytes *= extent;
  return bytes;
}

std::vector<i64> TorchTensor::value_shape() const {
  std::vector<i64> values = shape;
  if (!values.empty()) values.back() *= torch_dtype(dtype)->values;
  return values;
}

TensorPiece TorchTensor::piece(i64 storage_offset) const {
  return {std::vector<i64>(shape.size(), 0), shape, strides, storage_offset + offset};
}

bool is_global(const PickleGraph& graph, PickleRef node, std::string_view module, std::string_view name) {
  return graph.kind(node) == PickleKind::Global && graph.module(node) == module && graph.name(node) == name;
}

bool is_tensor(const PickleGraph& graph, PickleRef node) {
  if (graph.kind(node) != PickleKind::Call) return false;
  const PickleRef function = graph.function(node);
  if (graph.kind(function) != PickleKind::Global || !graph.name(function).starts_with("_rebuild_")) return false;
  const std::string_view module = graph.module(function);
  return module == kUtils || module == "torch._tensor" || module == "torch.tensor";
}

TorchTensor read_tensor(const PickleGraph& graph, PickleRef node, const InputPart& part, const std::string& name) {
  return TensorReader{graph, node, part, name}.read();
}

std::vector<i64> read_integers(const PickleGraph& graph, PickleRef node, const InputPart& part,
                               const std::string& name) {
  const TensorReader reader{graph, node, part, name};
  if (graph.kind(node) == PickleKind::Call && is_global(graph, graph.function(node), "torch", "Size"))
    node = reader.tuple(graph.arguments(node), 1)[0];
  if (graph.kind(node) != PickleKind::Tuple && graph.kind(node) != PickleKind::List)
    reader.fail_object(node, "a shape is no tuple");
  std::vector<i64> numbers;
  for (const PickleRef item : graph.items(node)) numbers.push_back(reader.integer(item));
  return numbers;
}

std::vector<i64> torch_shape(Dtype dtype, const std::vector<i64>& shape, const std::string& name) {
  const TorchDtype* row = torch_dtype(dtype);
  if (row == nullptr) fail(ErrorCode::NotExact, {{}, name}, "'{}': torch has no dtype for {}", name, dtype_name(dtype));
  std::vector<i64> elements = shape;
  if (row->values == 1) return elements;
  if (elements.empty() || elements.back() % row->values != 0)
    fail(ErrorCode::NotExact, {{}, name}, "'{}' {}: torch stores {} values of {} in one element", name,
         shape_text(shape), row->values, dtype_name(dtype));
  elements.back() /= row->values;
  return elements;
}

PickleRef add_size(PickleGraph& graph, const std::vector<i64>& shape) {
  std::vector<PickleRef> items;
  items.reserve(shape.size());
  for (const i64 extent : shape) items.push_back(graph.add_int(extent));
  const PickleRef tuple = graph.add_container(PickleKind::Tuple, items);
  return graph.add_call(graph.add_global("torch", "Size"), graph.add_tuple({tuple}));
}

PickleRef add_tensor(PickleGraph& graph, Dtype dtype, const std::vector<i64>& shape, const std::string& key,
                     const std::string& name) {
  const std::vector<i64> elements = torch_shape(dtype, shape, name);
  const TorchDtype& row = *torch_dtype(dtype);
  const bool typed = !row.storage.empty();
  i64 count = 1;
  for (const i64 extent : elements) count *= extent;
  const PickleRef type =
      typed ? graph.add_global("torch", row.storage) : graph.add_global("torch.storage", "UntypedStorage");
  const PickleRef id =
      graph.add_tuple({graph.add_string("storage"), type, graph.add_string(key), graph.add_string("cpu"),
                       graph.add_int(typed ? count : count * row.element_bytes)});
  std::vector<PickleRef> size;
  std::vector<PickleRef> stride;
  size.reserve(elements.size());
  stride.reserve(elements.size());
  for (const i64 extent : elements) size.push_back(graph.add_int(extent));
  for (const i64 step : dense_strides(elements, 1)) stride.push_back(graph.add_int(std::max<i64>(1, step)));
  const PickleRef hooks = graph.add_call(graph.add_global("collections", "OrderedDict"), graph.add_tuple({}));
  std::vector<PickleRef> arguments = {graph.add_persistent(id),
                                      graph.add_int(0),
                                      graph.add_container(PickleKind::Tuple, size),
                                      graph.add_container(PickleKind::Tuple, stride),
                                      graph.add_bool(false),
                                      hooks};
  if (!typed) arguments.push_back(graph.add_global("torch", row.name));
  return graph.add_call(graph.add_global(kUtils, typed ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3"),
                        graph.add_container(PickleKind::Tuple, arguments));
}

}  // namespace glu_ckpt
