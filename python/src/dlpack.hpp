#pragma once
/// The structs of DLPack 1.1 (https://dmlc.github.io/dlpack), by which array libraries hand each other memory without
/// copies, and what they mean here.

#include <cstdint>
#include <optional>

#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt::python {

struct DlDevice {
  std::int32_t type = 0;
  std::int32_t index = 0;
};
enum : std::int32_t { kDlCpu = 1, kDlCuda = 2, kDlCudaHost = 3, kDlCudaManaged = 13 };

struct DlDtype {
  std::uint8_t code = 0;
  std::uint8_t bits = 0;
  std::uint16_t lanes = 1;
};

struct DlTensor {
  void* data = nullptr;
  DlDevice device;
  std::int32_t axes = 0;
  DlDtype dtype;
  std::int64_t* shape = nullptr;
  /// In elements; null where the tensor is dense and row-major.
  std::int64_t* strides = nullptr;
  std::uint64_t byte_offset = 0;
};

/// Of capsules named "dltensor".
struct DlManaged {
  DlTensor tensor;
  void* context = nullptr;
  void (*deleter)(DlManaged*) = nullptr;
};

/// Of capsules named "dltensor_versioned".
struct DlManagedVersioned {
  std::uint32_t major = 1;
  std::uint32_t minor = 1;
  void* context = nullptr;
  void (*deleter)(DlManagedVersioned*) = nullptr;
  std::uint64_t flags = 0;
  DlTensor tensor;
};
inline constexpr std::uint64_t kDlReadOnly = 1;

/// Absent for dtypes that are none of ours, such as complex doubles and vectors of lanes.
std::optional<Dtype> dtype_of(DlDtype dtype);
DlDtype dl_dtype(Dtype dtype);

}  // namespace glu_ckpt::python
