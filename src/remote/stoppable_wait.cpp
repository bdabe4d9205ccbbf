#include "remote/stoppable_wait.hpp"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

namespace glu_ckpt {
namespace {

/// How long a request to stop may go unseen.
constexpr i64 kGlanceMs = 50;

struct WaitingCalls {
  std::mutex mutex;
  std::vector<const StopToken*> stops;
};

WaitingCalls& waiting_calls() {
  static WaitingCalls calls;
  return calls;
}

void check_all() {
  WaitingCalls& calls = waiting_calls();
  const std::lock_guard lock(calls.mutex);
  const auto is_asked = [](const StopToken* stop) { return stop != nullptr && stop->requested(); };
  if (!calls.stops.empty() && std::ranges::all_of(calls.stops, is_asked)) calls.stops.front()->check();
}

}  // namespace

WaitingCall::WaitingCall(const StopToken* stop) : stop_(stop) {
  const std::lock_guard lock(waiting_calls().mutex);
  waiting_calls().stops.push_back(stop_);
}

WaitingCall::~WaitingCall() {
  const std::lock_guard lock(waiting_calls().mutex);
  std::vector<const StopToken*>& stops = waiting_calls().stops;
  stops.erase(std::ranges::find(stops, stop_));
}

void wait_stoppably(i64 milliseconds) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::milliseconds(milliseconds);
  for (auto now = Clock::now(); now < end; now = Clock::now()) {
    check_all();
    std::this_thread::sleep_for(std::min<Clock::duration>(end - now, std::chrono::milliseconds(kGlanceMs)));
  }
  check_all();
}

}  // namespace glu_ckpt
