/// Linked into a program, this makes it stand still in the middle of a conversion for as long as a test likes: with
/// GLU_CKPT_TEST_HOLD=DIR, the fourth large write waits until DIR/go exists, and DIR/PID says that it does.

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "io/system_calls.hpp"

namespace glu_ckpt {
namespace {

/// Tensors; headers, journals and sums are written by less.
constexpr std::size_t kLargeBytes = 128 << 10;
/// The first three are done and in the journal by then, where one worker writes.
constexpr int kHeldWrite = 4;

class HeldWrites final : public SystemCalls {
 public:
  ssize_t pwrite(int descriptor, const void* from, std::size_t bytes, i64 offset) override {
    if (bytes >= kLargeBytes) before_large_write();
    return SystemCalls::pwrite(descriptor, from, bytes, offset);
  }

 private:
  void before_large_write() {
    const char* dir = std::getenv("GLU_CKPT_TEST_HOLD");
    const int number = ++writes_;
    if (dir == nullptr || number < kHeldWrite) return;
    const std::filesystem::path held(dir);
    if (number == kHeldWrite) std::ofstream(held / std::to_string(getpid()));
    while (!std::filesystem::exists(held / "go")) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  std::atomic<int> writes_ = 0;
};

HeldWrites held_writes;
const SystemCallsScope scope(held_writes);

}  // namespace
}  // namespace glu_ckpt
