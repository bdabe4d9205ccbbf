/// What the operators ask of many tensors at once. Attributes of Python take half a microsecond a tensor, and a step of
/// 128 experts asks for a thousand.

#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <span>
#include <vector>

#include "addresses.hpp"
#include "borrowed_tensor.hpp"
#include "dlpack.hpp"
#include "tensor_ops.hpp"

namespace nb = nanobind;

namespace glu_ckpt::python {
namespace {

/// The functions of C by which a type describes its tensors, without a capsule for each: DLPack 1.3's
/// DLPackExchangeAPI, of which only what is called here has its type. torch has it since 2.10.
struct DlExchange {
  std::uint32_t major = 0;
  std::uint32_t minor = 0;
  void* older = nullptr;
  void* allocate = nullptr;
  void* to_managed = nullptr;
  void* from_managed = nullptr;
  /// Shape and strides stay the tensor's own. Where it fails it returns something else than 0, and Python has its
  /// error.
  int (*describe)(void* object, DlTensor* made) = nullptr;
  void* current_stream = nullptr;
};

/// Null where the type has none.
const DlExchange* exchange_of(nb::handle type) {
  const nb::object capsule = nb::steal(PyObject_GetAttrString(type.ptr(), "__dlpack_c_exchange_api__"));
  const bool is_one = capsule.is_valid() && PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api") != 0;
  PyErr_Clear();
  if (!is_one) return nullptr;
  const auto* const made = static_cast<const DlExchange*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  return made->major == 1 && made->describe != nullptr ? made : nullptr;
}

/// A tensor, as long as nobody changes it.
class DescribedTensor {
 public:
  DescribedTensor(nb::handle object, const DlExchange* exchange) {
    if (exchange != nullptr) {
      if (exchange->describe(object.ptr(), &tensor_) != 0) nb::raise_python_error();
      return;
    }
    borrowed_.emplace(object.attr("detach")(), "a tensor");
    tensor_ = borrowed_->described();
  }

  Address address() const {
    return reinterpret_cast<Address>(tensor_.data) + static_cast<Address>(tensor_.byte_offset);
  }
  std::span<const i64> shape() const { return {tensor_.shape, static_cast<std::size_t>(tensor_.axes)}; }

  bool is_dense() const {
    if (tensor_.strides == nullptr || std::ranges::find(shape(), 0) != shape().end()) return true;
    i64 step = 1;
    for (std::size_t axis = shape().size(); axis-- > 0;) {
      if (shape()[axis] != 1 && tensor_.strides[axis] != step) return false;
      step *= shape()[axis];
    }
    return true;
  }

  /// Of one device, dtype and shape.
  bool is_like(const DescribedTensor& other) const {
    const DlTensor& a = tensor_;
    const DlTensor& b = other.tensor_;
    return a.device.type == b.device.type && a.device.index == b.device.index && a.dtype.code == b.dtype.code &&
           a.dtype.bits == b.dtype.bits && a.dtype.lanes == b.dtype.lanes && std::ranges::equal(shape(), other.shape());
  }

  /// Bytes from its first value to behind its last one. An expanded tensor has more values than memory.
  i64 extent() const {
    const i64 element_bytes = tensor_.dtype.bits * tensor_.dtype.lanes / 8;
    i64 last = 0, dense = 1;
    for (std::size_t axis = shape().size(); axis-- > 0;) {
      if (shape()[axis] == 0) return 0;
      last += (shape()[axis] - 1) * (tensor_.strides == nullptr ? dense : tensor_.strides[axis]);
      dense *= shape()[axis];
    }
    return (last + 1) * element_bytes;
  }

 private:
  DlTensor tensor_;
  std::optional<BorrowedTensor> borrowed_;
};

/// Calls `use(tensor)` for each.
template <typename Use>
void describe_all(const nb::list& tensors, const Use& use) {
  nb::handle type;
  const DlExchange* exchange = nullptr;
  for (const nb::handle tensor : tensors) {
    if (!type.is(tensor.type())) exchange = exchange_of(type = tensor.type());
    use(DescribedTensor(tensor, exchange));
  }
}

std::optional<std::vector<Address>> alike_addresses(const nb::list& tensors) {
  std::optional<DescribedTensor> first;
  std::vector<Address> addresses;
  bool alike = true;
  describe_all(tensors, [&](DescribedTensor&& tensor) {
    addresses.push_back(tensor.address());
    alike = alike && tensor.is_dense() && (!first || tensor.is_like(*first));
    if (!first) first.emplace(std::move(tensor));
  });
  return alike ? std::optional(std::move(addresses)) : std::nullopt;
}

bool have_same_shapes(const nb::list& some, const nb::list& others) {
  std::vector<std::vector<i64>> shapes;
  describe_all(
      some, [&](const DescribedTensor& tensor) { shapes.emplace_back(tensor.shape().begin(), tensor.shape().end()); });
  std::size_t next = 0;
  bool same = some.size() == others.size();
  describe_all(others, [&](const DescribedTensor& tensor) {
    same = same && std::ranges::equal(tensor.shape(), shapes[next++]);
  });
  return same;
}

struct MemorySpan {
  Address begin = 0;
  Address end = 0;
};

std::vector<MemorySpan> sorted_spans(const nb::list& tensors) {
  std::vector<MemorySpan> spans;
  describe_all(tensors, [&](const DescribedTensor& tensor) {
    const MemorySpan span{tensor.address(), tensor.address() + tensor.extent()};
    if (span.begin < span.end) spans.push_back(span);
  });
  std::ranges::sort(spans, {}, &MemorySpan::begin);
  return spans;
}

bool overlap_each_other(const nb::list& tensors) {
  const std::vector<MemorySpan> spans = sorted_spans(tensors);
  return std::ranges::adjacent_find(spans, [](const MemorySpan& a, const MemorySpan& b) { return b.begin < a.end; }) !=
         spans.end();
}

/// `tensors` may overlap each other, `apart` do not.
bool overlap(const nb::list& apart, const nb::list& tensors) {
  const std::vector<MemorySpan> spans = sorted_spans(apart);
  const std::vector<MemorySpan> others = sorted_spans(tensors);
  return std::ranges::any_of(others, [&](const MemorySpan& other) {
    const auto behind = std::ranges::lower_bound(spans, other.end, {}, &MemorySpan::begin);
    return behind != spans.begin() && other.begin < std::prev(behind)->end;
  });
}

}  // namespace

void bind_many(nb::module_& module) {
  module.def("alike_addresses", &alike_addresses, nb::arg("tensors"),
             "The tensors' addresses, if all are dense and of the first one's device, dtype and shape; else None.");
  module.def("have_same_shapes", &have_same_shapes, nb::arg("some"), nb::arg("others"),
             "Whether two lists have as many tensors, of the same shapes.");
  module.def("overlap_each_other", &overlap_each_other, nb::arg("tensors"), "Whether two of them share memory.");
  module.def("overlap", &overlap, nb::arg("apart"), nb::arg("tensors"),
             "Whether one of the second shares memory with one of the first, which lie apart.");
}

}  // namespace glu_ckpt::python
