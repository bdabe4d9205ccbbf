#include "borrowed_tensor.hpp"

#include <nanobind/stl/string.h>

#include <utility>

#include "core/fail.hpp"
#include "dlpack.hpp"

namespace nb = nanobind;

namespace glu_ckpt::python {
namespace {

std::string device_text(DlDevice device, const std::string& name) {
  switch (device.type) {
    case kDlCpu:
    case kDlCudaHost: return "cpu";
    case kDlCuda:
    case kDlCudaManaged: return "cuda:" + std::to_string(device.index);
    default:
      fail(ErrorCode::NotSupported, {}, "{}: on a device of DLPack's kind {}; only the CPU and CUDA are supported",
           name, device.type);
  }
}

TensorView view_of(const DlTensor& tensor, const std::string& name) {
  TensorView view;
  view.device = device_text(tensor.device, name);
  view.data = static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
  view.shape.assign(tensor.shape, tensor.shape + tensor.axes);
  if (tensor.strides != nullptr) view.strides.assign(tensor.strides, tensor.strides + tensor.axes);
  // Two values of 4 bits to an element, as torch.float4_e2m1fn_x2 has them, are a byte.
  const bool is_packed = tensor.dtype.lanes > 1 && tensor.dtype.bits * tensor.dtype.lanes == 8;
  const auto dtype = is_packed ? std::optional(Dtype::U8) : dtype_of(tensor.dtype);
  if (!dtype)
    fail(ErrorCode::NotSupported, {}, "{}: elements of DLPack's code {}, {} bits and {} lanes are not supported", name,
         tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes);
  view.dtype = *dtype;
  return view;
}

/// The dtype of a buffer's format, for what has no DLPack: bytes, memoryview, array.array and old versions of numpy.
std::optional<Dtype> dtype_of_format(std::string_view format, Py_ssize_t item_bytes) {
  if (!format.empty() && (format.front() == '<' || format.front() == '=' || format.front() == '@'))
    format.remove_prefix(1);
  if (format.size() != 1) return std::nullopt;
  const auto bits = static_cast<std::uint8_t>(8 * item_bytes);
  switch (format.front()) {
    case '?': return Dtype::BOOL;
    case 'e':
    case 'f':
    case 'd': return dtype_of({2, bits, 1});
    case 'b':
    case 'h':
    case 'i':
    case 'l':
    case 'q':
    case 'n': return dtype_of({0, bits, 1});
    case 'B':
    case 'c':
    case 'H':
    case 'I':
    case 'L':
    case 'Q':
    case 'N': return dtype_of({1, bits, 1});
    default: return std::nullopt;
  }
}

nb::object call_dlpack(nb::handle method, std::optional<std::int64_t> stream) {
  nb::dict words;
  if (stream) words["stream"] = *stream;
  words["max_version"] = nb::make_tuple(1, 1);
  const nb::tuple none;
  nb::object capsule = nb::steal(PyObject_Call(method.ptr(), none.ptr(), words.ptr()));
  if (capsule.is_valid()) return capsule;
  // What is older than DLPack 1.0 knows no max_version.
  if (PyErr_ExceptionMatches(PyExc_TypeError) == 0) return capsule;
  PyErr_Clear();
  PyDict_DelItemString(words.ptr(), "max_version");
  return nb::steal(PyObject_Call(method.ptr(), none.ptr(), words.ptr()));
}

}  // namespace

BorrowedTensor::BorrowedTensor(nb::handle object, std::string name, std::optional<std::int64_t> stream)
    : name_(std::move(name)) {
  const nb::object method = nb::steal(PyObject_GetAttrString(object.ptr(), "__dlpack__"));
  if (!method.is_valid()) {
    PyErr_Clear();
    take_buffer(object, "it has neither __dlpack__ nor a buffer");
    return;
  }
  const nb::object capsule = call_dlpack(method, stream);
  if (capsule.is_valid()) {
    take_capsule(capsule);
    return;
  }
  std::string why;
  try {
    nb::raise_python_error();
  } catch (nb::python_error& error) {
    why = nb::cast<std::string>(nb::str(error.value()));
  }
  // numpy before 2.1 hands out no read-only array by DLPack.
  take_buffer(object, why);
}

void BorrowedTensor::take_capsule(const nb::object& capsule) {
  owner_ = capsule;
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned") != 0) {
    const auto* const managed =
        static_cast<const DlManagedVersioned*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
    if (managed->major != 1)
      fail(ErrorCode::NotSupported, {}, "{}: DLPack {}.{}; version 1 is supported", name_, managed->major,
           managed->minor);
    read_only_ = (managed->flags & kDlReadOnly) != 0;
    described_ = managed->tensor;
  } else if (PyCapsule_IsValid(capsule.ptr(), "dltensor") != 0) {
    described_ = static_cast<const DlManaged*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"))->tensor;
  } else {
    fail(ErrorCode::Usage, {}, "{}: its __dlpack__ gave no DLPack capsule", name_);
  }
  view_ = view_of(described_, name_);
}

void BorrowedTensor::take_buffer(nb::handle object, const std::string& why) {
  Py_buffer buffer{};
  if (PyObject_GetBuffer(object.ptr(), &buffer, PyBUF_STRIDED_RO | PyBUF_FORMAT) != 0) {
    PyErr_Clear();
    fail(ErrorCode::Usage, {}, "{}: {} is no tensor that can be shared: {}", name_,
         nb::cast<std::string>(nb::str(nb::type_name(object.type()))), why);
  }
  const auto dtype = dtype_of_format(buffer.format == nullptr ? "B" : buffer.format, buffer.itemsize);
  const std::string format = buffer.format == nullptr ? "B" : buffer.format;
  view_.data = static_cast<std::byte*>(buffer.buf);
  view_.shape.assign(buffer.shape, buffer.shape + buffer.ndim);
  bool whole_strides = true;
  for (int axis = 0; axis < buffer.ndim; ++axis) {
    whole_strides = whole_strides && buffer.strides[axis] % buffer.itemsize == 0;
    view_.strides.push_back(buffer.strides[axis] / buffer.itemsize);
  }
  read_only_ = buffer.readonly != 0;
  PyBuffer_Release(&buffer);
  if (!dtype || !whole_strides)
    fail(ErrorCode::NotSupported, {}, "{}: elements of the format '{}' are not supported", name_, format);
  view_.dtype = *dtype;
  // A view of its own, which keeps the memory where it is.
  owner_ = nb::steal(PyMemoryView_FromObject(object.ptr()));
  if (!owner_.is_valid()) nb::raise_python_error();
}

const TensorView& BorrowedTensor::writable() const {
  if (read_only_)
    fail(ErrorCode::Usage, {}, "{}: shape {} of {} is read-only memory; give memory that can be written", name_,
         shape_text(view_.shape), dtype_name(view_.dtype));
  return view_;
}

GpuStream stream_of(std::optional<std::int64_t> stream) {
  const std::int64_t address = stream.value_or(0);
  return address == 1 ? nullptr : reinterpret_cast<GpuStream>(address);
}

}  // namespace glu_ckpt::python
