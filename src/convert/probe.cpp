#include <algorithm>
#include <chrono>

#include "convert/passes.hpp"
#include "core/checked_math.hpp"
#include "exec/execute_tasks.hpp"
#include "io/file.hpp"
#include "io/page_bytes.hpp"
#include "io/sink.hpp"

namespace glu_ckpt {
namespace {

/// Enough for many writes before the first place is written again.
constexpr i64 kFileBytes = i64{1} << 30;

/// Takes whatever is written, at places that follow each other in one file, round and round.
class ProbeSink final : public Sink {
 public:
  ProbeSink(File direct, File buffered, i64 bytes)
      : file_(direct.is_open() ? std::move(direct) : std::move(buffered)), bytes_(bytes) {
    file_.reserve(bytes_);
  }

  void write(std::size_t, i64, std::span<const std::byte> bytes) override {
    // Whole pages, as direct I/O wants them; what is left out are a few bytes of each range.
    const auto whole = static_cast<i64>(bytes.size()) / kPageBytes * kPageBytes;
    if (whole == 0 || whole > bytes_) return;
    i64 at = next_.fetch_add(whole);
    at = at % bytes_ + whole <= bytes_ ? at % bytes_ : 0;
    file_.pwrite_exact(bytes.first(static_cast<std::size_t>(whole)), at);
  }
  void sync() const { file_.sync(); }

  i64 file_offset(std::size_t) const override { return -1; }

 private:
  File file_;
  i64 bytes_;
  std::atomic<i64> next_{0};
};

/// 0, n/2, n/4, 3n/4, ...: any beginning of it is spread over all.
std::vector<i64> spread(i64 count) {
  std::vector<i64> order;
  i64 step = 1;
  while (step < count) step *= 2;
  std::vector<bool> given(static_cast<std::size_t>(count));
  for (; step >= 1; step /= 2)
    for (i64 i = 0; i < count; i += step)
      if (!given[static_cast<std::size_t>(i)]) {
        given[static_cast<std::size_t>(i)] = true;
        order.push_back(i);
      }
  return order;
}

}  // namespace

std::optional<ProbedRate> probe_rate(const Plan& plan, const Source& source, const std::filesystem::path& directory,
                                     const Backend& backend, const ExecuteOptions& options, double seconds) {
  TaskPlan tasks = plan_tasks(plan, backend, options);
  File buffered = File::unnamed(directory, false);
  if (tasks.tasks.empty() || !buffered.is_open()) return std::nullopt;
  try {
    ProbeSink sink(File::unnamed(directory, true), std::move(buffered),
                   std::min(kFileBytes, round_up(plan.bytes, kPageBytes)));
    std::vector<Task> order;
    for (const i64 number : spread(std::ssize(tasks.tasks)))
      order.push_back(tasks.tasks[static_cast<std::size_t>(number)]);
    tasks.tasks = std::move(order);
    const auto alone = make_single_rank();
    TaskQueue queue(*alone, task_bytes(tasks.tasks));
    std::atomic<i64> done{0};
    ExecuteOptions sample = options;
    sample.log = nullptr;
    const auto start = std::chrono::steady_clock::now();
    const auto elapsed = [&] {
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    };
    sample.on_progress = [&](i64 bytes) {
      done += bytes;
      if (elapsed() >= seconds) queue.close();
      if (options.on_progress) options.on_progress(bytes);
    };
    (void)execute_tasks(plan, source, sink, backend, sample, tasks, queue);
    sink.sync();
    return ProbedRate{done, elapsed()};
  } catch (const Error& error) {
    if (error.code() != ErrorCode::NoSpace) throw;
    return std::nullopt;
  }
}

}  // namespace glu_ckpt
