#include "remote/stoppable_wait.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace glu_ckpt {
namespace {

struct WaitingCalls {
  std::mutex mutex;
  std::vector<const StopToken*> stops;
};

WaitingCalls& waiting_calls() {
  static WaitingCalls calls;
  return calls;
}

/// The mutex is held.
bool are_all_asked(const std::vector<const StopToken*>& stops) {
  const auto is_asked = [](const StopToken* stop) { return stop != nullptr && stop->requested(); };
  return !stops.empty() && std::ranges::all_of(stops, is_asked);
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

bool is_stop_asked() {
  WaitingCalls& calls = waiting_calls();
  const std::lock_guard lock(calls.mutex);
  return are_all_asked(calls.stops);
}

void check_stop() {
  WaitingCalls& calls = waiting_calls();
  const std::lock_guard lock(calls.mutex);
  if (are_all_asked(calls.stops)) calls.stops.front()->check();
}

void wait_stoppably(i64 milliseconds) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::milliseconds(milliseconds);
  for (auto now = Clock::now(); now < end; now = Clock::now()) {
    check_stop();
    std::this_thread::sleep_for(std::min<Clock::duration>(end - now, std::chrono::milliseconds(kGlanceMs)));
  }
  check_stop();
}

void run_stoppably(const std::function<void()>& call) {
  struct Ended {
    std::mutex mutex;
    std::condition_variable changed;
    bool is = false;
  };
  const auto ended = std::make_shared<Ended>();
  try {
    std::thread([call, ended] {
      call();
      const std::lock_guard lock(ended->mutex);
      ended->is = true;
      ended->changed.notify_all();
    }).detach();
  } catch (const std::system_error&) {
    // No thread can be had: then it is not stopped.
    return call();
  }
  std::unique_lock lock(ended->mutex);
  while (!ended->changed.wait_for(lock, std::chrono::milliseconds(kGlanceMs), [&] { return ended->is; })) check_stop();
}

}  // namespace glu_ckpt
