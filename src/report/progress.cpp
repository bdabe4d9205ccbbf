#include "report/progress.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "report/report.hpp"

namespace glu_ckpt::report {
namespace {

using Clock = std::chrono::steady_clock;

std::chrono::milliseconds interval(ProgressStyle style) {
  return std::chrono::milliseconds(style == ProgressStyle::Bar ? 100 : style == ProgressStyle::Json ? 1000 : 10000);
}

}  // namespace

Progress::Progress(ProgressStyle style, std::string title, i64 total_bytes)
    : style_(style), title_(std::move(title)), total_(total_bytes), start_(Clock::now()), printed_(start_) {}

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
  if (style_ == ProgressStyle::Json) {
    fmt::print(stderr, "{{\"phase\":\"{}\",\"bytes\":{},\"total\":{},\"seconds\":{:.1f}}}\n", title_, done, total_,
               seconds);
    return;
  }
  const double percent = total_ > 0 ? 100.0 * static_cast<double>(done) / static_cast<double>(total_) : 100.0;
  const std::string line = fmt::format("{} {:5.1f}%  {} of {}  {}/s  {:.0f} s left", title_, percent, size_text(done),
                                       size_text(total_), size_text(static_cast<i64>(rate)), left);
  if (style_ == ProgressStyle::Bar)
    fmt::print(stderr, "\r{:<78}{}", line, last ? "\n" : "");
  else
    fmt::print(stderr, "{}\n", line);
  std::fflush(stderr);
}

}  // namespace glu_ckpt::report
