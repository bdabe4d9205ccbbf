#include "report/text/progress.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "report/report.hpp"
#include "report/text/tell.hpp"

namespace glu_ckpt::report {
namespace {

using Clock = std::chrono::steady_clock;

std::chrono::milliseconds interval(ProgressStyle style) {
  return std::chrono::milliseconds(style == ProgressStyle::Bar ? 100 : style == ProgressStyle::Json ? 1000 : 10000);
}

/// Returns the columns of the terminal at stderr as they are now: somebody may have resized it.
std::size_t terminal_columns() {
  constexpr std::size_t kUsual = 80;
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kUsual;
  return size.ws_col;
}

std::string bar_text(double share, std::size_t width) {
  const auto filled = static_cast<std::size_t>(std::clamp(share, 0.0, 1.0) * static_cast<double>(width));
  std::string text(width, ' ');
  std::fill_n(text.begin(), filled, '=');
  if (filled < width) text[filled] = '>';
  return "[" + text + "]";
}

}  // namespace

std::string duration_text(double seconds) {
  constexpr i64 kMinute = 60, kHour = 3600;
  const i64 whole = std::llround(std::clamp(seconds, 0.0, 1e9));
  if (whole < kMinute) return fmt::format("{} s", whole);
  if (whole < kHour) return fmt::format("{} min {} s", whole / kMinute, whole % kMinute);
  return fmt::format("{} h {} min", whole / kHour, whole % kHour / kMinute);
}

std::string progress_line(const ProgressState& state, std::size_t columns) {
  const double share = state.total > 0 ? static_cast<double>(state.done) / static_cast<double>(state.total) : 1.0;
  const double rate = static_cast<double>(state.done) / std::max(state.seconds, 1e-9);
  const bool finished = state.done >= state.total;
  const std::string left = finished   ? duration_text(state.seconds)
                           : rate > 0 ? duration_text(static_cast<double>(state.total - state.done) / rate) + " left"
                                      : "";
  // The pieces are in order from left to right; `rank` says how soon each is left out.
  struct Piece {
    int rank;
    std::string text;
  };
  std::vector<Piece> pieces = {
      {1, state.title},
      {0, fmt::format("{:.0f}%", std::floor(100 * std::min(share, 1.0)))},
      {4, fmt::format("{} of {}", size_text(state.done), size_text(state.total))},
      {3, size_text(std::llround(std::min(rate, 1e18))) + "/s"},
      {2, left},
      {5, state.bottleneck.empty() ? "" : "mostly " + state.bottleneck},
  };
  std::erase_if(pieces, [](const Piece& piece) { return piece.text.empty(); });
  const auto joined = [&] {
    std::string line;
    for (const Piece& piece : pieces) line += (line.empty() ? "" : "  ") + piece.text;
    return line;
  };
  if (columns == 0) return joined();
  // One width for one terminal: a bar that grew and shrank with the text beside it would say nothing.
  if (const std::size_t width = columns >= 100 ? 20 : columns >= 70 ? 10 : 0; width > 0)
    pieces[1].text = fmt::format("{} {:>4}", bar_text(share, width), pieces[1].text);
  while (pieces.size() > 1 && joined().size() >= columns)
    pieces.erase(std::ranges::max_element(pieces, {}, &Piece::rank));
  return joined().substr(0, columns - 1);
}

void ProgressObserver::stage_begins(std::string_view title, i64 bytes) {
  const std::lock_guard lock(mutex_);
  title_ = title;
  total_ = bytes;
  done_ = 0;
  start_ = printed_ = Clock::now();
  printed_any_ = false;
  if (shown_.progress == ProgressStyle::Json) print(false, {});
}

void ProgressObserver::stage_ends() {
  const std::lock_guard lock(mutex_);
  const bool always = shown_.progress == ProgressStyle::AllLines || shown_.progress == ProgressStyle::Json;
  if (printed_any_ || always) print(true, {});
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
  const std::lock_guard lock(mutex_);
  warnings_.emplace_back(sentence);
  clear_bar();
  tell("glu-ckpt: {} {}\n", painted(Paint::Warning, "warning:"), sentence);
}

void ProgressObserver::note(std::string_view sentence) {
  if (!shown_.notes) return;
  const std::lock_guard lock(mutex_);
  clear_bar();
  tell("glu-ckpt: {} {}\n", painted(Paint::Note, "note:"), sentence);
}

void ProgressObserver::detail(std::string_view sentence) {
  if (!shown_.details) return;
  const std::lock_guard lock(mutex_);
  clear_bar();
  tell("glu-ckpt: {}\n", sentence);
}

void ProgressObserver::clear_bar() {
  if (bar_is_shown_) tell("\r\x1b[K");
  bar_is_shown_ = false;
}

void ProgressObserver::print(bool last, std::string_view bottleneck) {
  const i64 done = done_;
  const double seconds = std::max(std::chrono::duration<double>(Clock::now() - start_).count(), 1e-9);
  if (shown_.progress == ProgressStyle::Json) {
    tell("{{\"phase\":\"{}\",\"bytes\":{},\"total\":{},\"seconds\":{:.1f},\"bottleneck\":{}}}\n", title_, done, total_,
         seconds, bottleneck.empty() ? "null" : fmt::format("\"{}\"", bottleneck));
    return;
  }
  const ProgressState state{title_, done, total_, seconds, std::string(bottleneck)};
  if (shown_.progress == ProgressStyle::Bar) {
    tell("\r{}\x1b[K{}", painted(Paint::Bar, progress_line(state, terminal_columns())), last ? "\n" : "");
    bar_is_shown_ = !last;
  } else {
    tell("{}\n", progress_line(state));
  }
  std::fflush(stderr);
}

}  // namespace glu_ckpt::report
