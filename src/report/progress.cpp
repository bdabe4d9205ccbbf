#include "report/progress.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "report/report.hpp"
#include "report/tell.hpp"

namespace glu_ckpt::report {
namespace {

using Clock = std::chrono::steady_clock;

std::chrono::milliseconds interval(ProgressStyle style) {
  return std::chrono::milliseconds(style == ProgressStyle::Bar ? 100 : style == ProgressStyle::Json ? 1000 : 10000);
}

}  // namespace

void ProgressObserver::stage_begins(std::string_view title, i64 bytes) {
  const std::lock_guard lock(mutex_);
  title_ = title;
  total_ = bytes;
  done_ = 0;
  start_ = printed_ = Clock::now();
  printed_any_ = false;
}

void ProgressObserver::stage_ends() {
  const std::lock_guard lock(mutex_);
  if (printed_any_) print(true, {});
}

void ProgressObserver::advance(i64 bytes, std::string_view bottleneck) {
  done_ += bytes;
  if (shown_.progress == ProgressStyle::None) return;
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || Clock::now() - printed_ < interval(shown_.progress)) return;
  printed_ = Clock::now();
  printed_any_ = true;
  print(false, bottleneck);
}

void ProgressObserver::warn(std::string_view sentence) {
  warnings_.emplace_back(sentence);
  tell("glu-ckpt: warning: {}\n", sentence);
}

void ProgressObserver::note(std::string_view sentence) {
  if (shown_.notes) tell("glu-ckpt: note: {}\n", sentence);
}

void ProgressObserver::detail(std::string_view sentence) {
  if (shown_.details) tell("glu-ckpt: {}\n", sentence);
}

void ProgressObserver::print(bool last, std::string_view bottleneck) {
  const i64 done = done_;
  const double seconds = std::max(std::chrono::duration<double>(Clock::now() - start_).count(), 1e-9);
  const double rate = static_cast<double>(done) / seconds;
  const double left = rate > 0 ? static_cast<double>(total_ - done) / rate : 0;
  if (shown_.progress == ProgressStyle::Json) {
    tell("{{\"phase\":\"{}\",\"bytes\":{},\"total\":{},\"seconds\":{:.1f},\"bottleneck\":{}}}\n", title_, done, total_,
         seconds, bottleneck.empty() ? "null" : fmt::format("\"{}\"", bottleneck));
    return;
  }
  const double percent = total_ > 0 ? 100.0 * static_cast<double>(done) / static_cast<double>(total_) : 100.0;
  std::string line = fmt::format("{} {:5.1f}%  {} of {}  {}/s  {:.0f} s left", title_, percent, size_text(done),
                                 size_text(total_), size_text(static_cast<i64>(rate)), left);
  if (!bottleneck.empty()) line += fmt::format("  mostly {}", bottleneck);
  if (shown_.progress == ProgressStyle::Bar)
    tell("\r{:<78}{}", line, last ? "\n" : "");
  else
    tell("{}\n", line);
  std::fflush(stderr);
}

}  // namespace glu_ckpt::report
