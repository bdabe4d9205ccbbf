#pragma once
/// The options of a call that say how it may use this machine, whom it reports to, and how it is stopped. Nothing here
/// decides about the bytes of an output.

#include <atomic>
#include <string>
#include <string_view>

#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

/// Follows a call while it works. The library itself prints nothing; every function may stay as it is.
class Observer {
 public:
  virtual ~Observer() = default;
  /// A stage of the call begins: "converting", and how many bytes it will go through.
  virtual void stage_begins(std::string_view /*title*/, i64 /*bytes*/) {}
  /// Bytes of the running stage are finished. `bottleneck` is what its threads spend most time in ("reading"), or
  /// empty. Any thread of the call may call it, several at once.
  virtual void advance(i64 /*bytes*/, std::string_view /*bottleneck*/) {}
  virtual void stage_ends() {}
  /// A sentence about what may load and be wrong. It comes before the work.
  virtual void warn(std::string_view /*sentence*/) {}
  /// A sentence that the user should know.
  virtual void note(std::string_view /*sentence*/) {}
  /// A sentence about a decision that the call made, for those who ask.
  virtual void detail(std::string_view /*sentence*/) {}
};

/// Asks a running call to stop. It does so after the piece of work at hand, throws Interrupted, and leaves what
/// ConvertOptions::resume goes on with.
class StopToken {
 public:
  /// A signal handler may call it, with the signal's number; another thread gives none.
  void request(int signal = 0) noexcept { request_ = signal + 1; }
  bool requested() const noexcept { return request_ != 0; }
  /// Throws Interrupted where that was asked for.
  void check() const;

 private:
  std::atomic<int> request_{0};
};

struct RunOptions {
  /// Worker threads; 0 for one per core that this process may run on.
  int jobs = 0;
  /// Bytes of all buffers together.
  i64 memory_bytes = i64{1} << 30;
  /// "auto", "cpu", "cuda", "cuda:N" or "cuda:all". A device that was named is used or the call fails.
  std::string device = "auto";
  /// Bytes of the buffers on each GPU.
  i64 device_memory_bytes = i64{1} << 30;
  Observer* observer = nullptr;
  const StopToken* stop = nullptr;
};

}  // namespace glu_ckpt
