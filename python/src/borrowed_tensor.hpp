#pragma once
/// A tensor of an array library, borrowed for one call.

#include <nanobind/nanobind.h>

#include <optional>
#include <string>

#include "dlpack.hpp"
#include "glu_ckpt/ops/output_buffer.hpp"

namespace glu_ckpt::python {

/// Keeps the memory alive as long as it lives; to be made and destroyed with the GIL.
class BorrowedTensor {
 public:
  /// By `__dlpack__`, else by the buffer protocol. `name` is what messages call it; `stream` is handed to `__dlpack__`,
  /// so that the tensor is ready there: the address of a CUDA stream, or nothing for a tensor on the CPU. Throws Usage
  /// for what is no tensor, or is not to be shared; NotSupported for dtypes and devices.
  BorrowedTensor(nanobind::handle object, std::string name, std::optional<std::int64_t> stream = {});

  const TensorView& view() const { return view_; }
  /// The view, for writing. Throws Usage where the memory is read-only.
  const TensorView& writable() const;
  /// As `__dlpack__` described it; without axes and address where the buffer protocol did.
  const DlTensor& described() const { return described_; }

 private:
  void take_capsule(const nanobind::object& capsule);
  void take_buffer(nanobind::handle object, const std::string& why);

  std::string name_;
  TensorView view_;
  DlTensor described_;
  bool read_only_ = false;
  /// The capsule, or the memoryview: either gives the memory back when it goes.
  nanobind::object owner_;
};

/// A stream as Python gives it: 0 is CUDA's default one, and 1 is DLPack's word for that.
GpuStream stream_of(std::optional<std::int64_t> stream);

}  // namespace glu_ckpt::python
