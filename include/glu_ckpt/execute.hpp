#pragma once
/// The only place tensor bytes move.

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "glu_ckpt/checkpoint.hpp"
#include "glu_ckpt/plan.hpp"

namespace glu_ckpt {

/// Executes moves on memory it can reach.
class Backend {
 public:
  virtual ~Backend() = default;
  /// Copies as `move` says; `src` and `dst` are where offset 0 of the move's tensors would be.
  virtual void copy(const Move& move, const std::byte* src, std::byte* dst) const = 0;
  /// "cpu" or "cuda:0".
  virtual std::string name() const = 0;
};

/// "auto", "cpu" or "cuda[:N]". Throws NoDevice, Usage.
std::unique_ptr<Backend> make_backend(const std::string& device);

struct ExecuteOptions {
  /// Worker threads; each owns two buffers.
  int jobs = 1;
  /// Bytes of all buffers together.
  i64 memory_bytes = i64{1} << 30;
  /// Called with the bytes finished since the last call, from any worker thread.
  std::function<void(i64)> on_progress;
};

/// Reads through `source` and writes every byte of `plan` once through `sink`, in any order.
void execute(const Plan& plan, const Source& source, Sink& sink, const Backend& backend, const ExecuteOptions& options);

/// Bytes of the buffers that execute() will have allocated at the most.
i64 planned_buffer_bytes(const Plan& plan, int jobs, i64 memory_bytes);

/// Reads bytes [begin, end) of a tensor that `moves` describe into `out`, taking every byte from
/// `source`. `scratch` bounds the memory used for gathering short runs.
void gather(std::span<const Move> moves, const Source& source, const Backend& backend, i64 begin, i64 end,
            std::byte* out, std::vector<std::byte>& scratch, i64 scratch_bytes);

}  // namespace glu_ckpt
