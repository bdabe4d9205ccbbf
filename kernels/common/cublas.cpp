#include "kernels/common/cublas.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <vector>

#include "core/fail.hpp"

namespace glu_ckpt {
namespace {

using Status = int;
constexpr Status kSuccess = 0;
constexpr Status kAllocFailed = 3;

struct Functions {
  Status (*create)(CublasHandle*) = nullptr;
  Status (*destroy)(CublasHandle) = nullptr;
  Status (*set_stream)(CublasHandle, GpuStream) = nullptr;
  Status (*set_workspace)(CublasHandle, void*, std::size_t) = nullptr;
  Status (*set_math_mode)(CublasHandle, int) = nullptr;
  Status (*gemm_ex)(CublasHandle, int, int, int, int, int, const void*, const void*, cudaDataType_t, int, const void*,
                    cudaDataType_t, int, const void*, void*, cudaDataType_t, int, int, int) = nullptr;
  const char* (*status_text)(Status) = nullptr;
};

struct Library {
  Functions functions;
  std::string why_not;
};

template <typename Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

/// Returns the name of the first function that is missing, or nothing.
std::string find_functions(void* library, Functions& functions) {
  if (!find(library, "cublasCreate_v2", functions.create)) return "cublasCreate_v2";
  if (!find(library, "cublasDestroy_v2", functions.destroy)) return "cublasDestroy_v2";
  if (!find(library, "cublasSetStream_v2", functions.set_stream)) return "cublasSetStream_v2";
  if (!find(library, "cublasSetWorkspace_v2", functions.set_workspace)) return "cublasSetWorkspace_v2";
  if (!find(library, "cublasSetMathMode", functions.set_math_mode)) return "cublasSetMathMode";
  if (!find(library, "cublasGemmEx", functions.gemm_ex)) return "cublasGemmEx";
  if (!find(library, "cublasGetStatusString", functions.status_text)) return "cublasGetStatusString";
  return {};
}

std::vector<std::string> library_names() {
  if (const char* const path = std::getenv("GLU_CKPT_CUBLAS"); path != nullptr && *path != '\0') return {path};
  return {"libcublas.so.13", "libcublas.so.12"};
}

/// The library stays loaded: its handles may outlive whoever asked for it first.
Library load() {
  std::string tried;
  for (const std::string& name : library_names()) {
    void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      const char* const reason = dlerror();
      tried += (tried.empty() ? "" : "; ") + std::string(reason != nullptr ? reason : name.c_str());
      continue;
    }
    Functions functions;
    const std::string missing = find_functions(library, functions);
    if (missing.empty()) return {functions, {}};
    tried += fmt::format("{}{} has no {}", tried.empty() ? "" : "; ", name, missing);
  }
  return {{}, fmt::format("cuBLAS was not found; GLU_CKPT_CUBLAS can name its libcublas.so ({})", tried)};
}

const Library& library() {
  static const Library loaded = load();
  return loaded;
}

void check(Status status, const char* call) {
  if (status == kSuccess) return;
  fail(status == kAllocFailed ? ErrorCode::NoMemory : ErrorCode::DeviceFailed, {}, "{}: {} ({})", call,
       library().functions.status_text(status), status);
}

}  // namespace

const std::string& why_no_cublas_library() { return library().why_not; }

Cublas::Cublas() {
  if (!why_no_cublas_library().empty()) fail(ErrorCode::NoDevice, {}, "{}", why_no_cublas_library());
  check(library().functions.create(&handle_), "cublasCreate");
  const Status status = library().functions.set_math_mode(handle_, kCublasNoReducedPrecisionReduction);
  if (status != kSuccess) (void)library().functions.destroy(handle_);
  check(status, "cublasSetMathMode");
}

Cublas::~Cublas() { (void)library().functions.destroy(handle_); }

void Cublas::use(GpuStream stream, void* workspace, i64 bytes) const {
  // The stream comes first: a new stream brings cuBLAS's own workspace back, which a captured graph must not use.
  check(library().functions.set_stream(handle_, stream), "cublasSetStream");
  check(library().functions.set_workspace(handle_, workspace, static_cast<std::size_t>(bytes)), "cublasSetWorkspace");
}

void Cublas::gemm(const CublasGemm& gemm) const {
  const float one = 1;
  check(library().functions.gemm_ex(handle_, gemm.op_a, gemm.op_b, gemm.m, gemm.n, gemm.k, &one, gemm.a,
                                    gemm.operand_type, gemm.lda, gemm.b, gemm.operand_type, gemm.ldb, &gemm.beta,
                                    gemm.c, gemm.result_type, gemm.ldc, gemm.compute_type, kCublasGemmDefault),
        "cublasGemmEx");
}

}  // namespace glu_ckpt
