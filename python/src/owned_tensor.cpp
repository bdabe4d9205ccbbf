#include "owned_tensor.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <new>
#include <string>
#include <utility>

#include "core/fail.hpp"
#include "dlpack.hpp"

namespace nb = nanobind;

namespace glu_ckpt::python {
namespace {

/// What a capsule points to, and all that it points to in turn.
template <typename Managed>
struct Exported {
  Managed managed;
  std::shared_ptr<void> memory;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;
};

template <typename Managed>
nb::object make_capsule(const OwnedTensor& tensor, const char* name) {
  auto made = std::make_unique<Exported<Managed>>();
  made->memory = tensor.memory;
  made->shape.assign(tensor.shape.begin(), tensor.shape.end());
  made->strides.resize(tensor.shape.size());
  std::int64_t step = 1;
  for (std::size_t axis = tensor.shape.size(); axis-- > 0; step *= std::max<i64>(1, tensor.shape[axis]))
    made->strides[axis] = step;
  DlTensor& out = made->managed.tensor;
  out.data = tensor.data;
  out.device = {kDlCpu, 0};
  out.axes = static_cast<std::int32_t>(tensor.shape.size());
  out.dtype = dl_dtype(tensor.dtype);
  out.shape = made->shape.data();
  out.strides = made->strides.data();
  made->managed.context = made.get();
  made->managed.deleter = [](Managed* managed) { delete static_cast<Exported<Managed>*>(managed->context); };
  // Whoever took the tensor has renamed the capsule, and deletes it.
  PyObject* const capsule = PyCapsule_New(&made->managed, name, [](PyObject* left) {
    for (const char* const unused : {"dltensor", "dltensor_versioned"})
      if (PyCapsule_IsValid(left, unused) != 0) {
        auto* const managed = static_cast<Managed*>(PyCapsule_GetPointer(left, unused));
        managed->deleter(managed);
      }
  });
  if (capsule == nullptr) nb::raise_python_error();
  (void)made.release();
  return nb::steal(capsule);
}

nb::object dlpack(const OwnedTensor& tensor, const nb::kwargs& words) {
  if (dtype_bits(tensor.dtype) < 8)
    fail(ErrorCode::NotSupported, {}, "{} has {} bits: take its packed bytes, with raw=True", dtype_name(tensor.dtype),
         dtype_bits(tensor.dtype));
  const nb::object version = words.contains("max_version") ? nb::object(words["max_version"]) : nb::none();
  const nb::object copy = words.contains("copy") ? nb::object(words["copy"]) : nb::none();
  if (copy.is(nb::handle(Py_True)))
    fail(ErrorCode::NotSupported, {}, "a copy is for the library that takes the tensor to make");
  if (!version.is_none() && nb::cast<int>(version[0]) >= 1)
    return make_capsule<DlManagedVersioned>(tensor, "dltensor_versioned");
  return make_capsule<DlManaged>(tensor, "dltensor");
}

i64 bytes_of(const OwnedTensor& tensor) {
  i64 bits = dtype_bits(tensor.dtype);
  for (const i64 extent : tensor.shape) bits *= extent;
  return bits / 8;
}

OwnedTensor new_named_tensor(const std::string& dtype, std::vector<i64> shape, i64 bytes) {
  return new_tensor(dtype_from_name(dtype).value(), std::move(shape), bytes);
}

}  // namespace

OwnedTensor new_tensor(Dtype dtype, std::vector<i64> shape, i64 bytes) {
  constexpr std::align_val_t kAlignment{64};
  const std::shared_ptr<std::byte> memory(
      static_cast<std::byte*>(::operator new(static_cast<std::size_t>(bytes), kAlignment)),
      [kAlignment](std::byte* begin) { ::operator delete(begin, kAlignment); });
  return {memory, memory.get(), dtype, std::move(shape)};
}

OwnedTensor raw_bits(OwnedTensor tensor, i64 bytes) {
  switch (dtype_bits(tensor.dtype)) {
    case 8: tensor.dtype = Dtype::U8; return tensor;
    case 16: tensor.dtype = Dtype::U16; return tensor;
    case 32: tensor.dtype = Dtype::U32; return tensor;
    case 64: tensor.dtype = Dtype::U64; return tensor;
    default:
      tensor.dtype = Dtype::U8;
      tensor.shape = {bytes};
      return tensor;
  }
}

void bind_owned_tensor(nb::module_& module) {
  module.def("new_tensor", &new_named_tensor, nb::arg("dtype"), nb::arg("shape"), nb::arg("bytes"),
             "Memory for a tensor, not initialised.");
  nb::class_<OwnedTensor>(module, "Tensor", "Memory that numpy, torch and others take by DLPack, without a copy.")
      .def("__dlpack__", &dlpack, "The DLPack capsule.")
      .def(
          "__dlpack_device__", [](const OwnedTensor&) { return nb::make_tuple(int{kDlCpu}, 0); }, "(1, 0): the CPU.")
      .def(
          "raw", [](const OwnedTensor& tensor) { return raw_bits(tensor, bytes_of(tensor)); },
          "The same memory as unsigned integers.")
      .def_prop_ro(
          "dtype", [](const OwnedTensor& tensor) { return std::string(dtype_name(tensor.dtype)); },
          "As safetensors spells it: \"BF16\".")
      .def_prop_ro(
          "shape",
          [](const OwnedTensor& tensor) {
            nb::list shape;
            for (const i64 extent : tensor.shape) shape.append(extent);
            return nb::tuple(shape);
          },
          "Elements on each axis.");
}

}  // namespace glu_ckpt::python
