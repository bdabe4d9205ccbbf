#include "report/progress.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <string_view>
#include <utility>

#include "report/report.hpp"
#include "report/tell.hpp"

namespace glu_ckpt::report {
namespace {

using Clock = std::chrono::steady_clock;

std::chrono::milliseconds interval(ProgressStyle style) {
  return std::chrono::milliseconds(style == ProgressStyle::Bar ? 100 : style == ProgressStyle::Json ? 1000 : 10000);
}

/// The stage that takes the workers most time; empty where none has taken any.
std::string_view bottleneck(const StageTimes* times) {
  if (times == nullptr) return {};
  const std::pair<i64, std::string_view> stages[] = {
      {times->reading, "reading"}, {times->writing, "writing"}, {times->hashing, "hashing"}, {times->moving, "device"}};
  const auto& [most, name] = *std::ranges::max_element(stages, {}, &std::pair<i64, std::string_view>::first);
  return most > 0 ? name : std::string_view();
}

}  // namespace

Progress::Progress(ProgressStyle style, std::string title, i64 total_bytes, const StageTimes* times)
    : style_(style),
      title_(std::move(title)),
      total_(total_bytes),
      times_(times),
      start_(Clock::now()),
      printed_(start_) {}

Progress::~Progress() {
  if (printed_any_) print(true);
}

void Progress::add(i64 bytes) {
  done_ += bytes;
  if (style_ == ProgressStyle::None) return;
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || Clock::now() - printed_ < interval(style_)) return;
  printed_ = Clock::now();
  printed_any_ = true;
  print(false);
}

void Progress::print(bool last) {
  const i64 done = done_;
  const double seconds = std::max(std::chrono::duration<double>(Clock::now() - start_).count(), 1e-9);
  const double rate = static_cast<double>(done) / seconds;
  const double left = rate > 0 ? static_cast<double>(total_ - done) / rate : 0;
  const std::string_view slowest = bottleneck(times_);
  if (style_ == ProgressStyle::Json) {
    tell("{{\"phase\":\"{}\",\"bytes\":{},\"total\":{},\"seconds\":{:.1f},\"bottleneck\":{}}}\n", title_, done, total_,
         seconds, slowest.empty() ? "null" : fmt::format("\"{}\"", slowest));
    return;
  }
  const double percent = total_ > 0 ? 100.0 * static_cast<double>(done) / static_cast<double>(total_) : 100.0;
  std::string line = fmt::format("{} {:5.1f}%  {} of {}  {}/s  {:.0f} s left", title_, percent, size_text(done),
                                 size_text(total_), size_text(static_cast<i64>(rate)), left);
  if (!slowest.empty()) line += fmt::format("  mostly {}", slowest);
  if (style_ == ProgressStyle::Bar)
    tell("\r{:<78}{}", line, last ? "\n" : "");
  else
    tell("{}\n", line);
  std::fflush(stderr);
}

}  // namespace glu_ckpt::report
