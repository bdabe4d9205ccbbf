#pragma once
/// Waits for servers and between tries, which end when the calls that wait are to stop.

#include <functional>

#include "glu_ckpt/run_options.hpp"

namespace glu_ckpt {

/// A call of this process that may wait for servers, as long as this object lives. Null: it is never asked to stop.
class WaitingCall {
 public:
  explicit WaitingCall(const StopToken* stop);
  WaitingCall(const WaitingCall&) = delete;
  WaitingCall& operator=(const WaitingCall&) = delete;
  ~WaitingCall();

 private:
  const StopToken* stop_;
};

/// How long a request to stop may go unseen.
inline constexpr i64 kGlanceMs = 50;

/// Returns true once all calls of this process were asked to stop: a thread that reads does not know for which of them.
bool is_stop_asked();

/// Throws Interrupted then.
void check_stop();

/// Waits so long, or throws Interrupted as soon as is_stop_asked().
void wait_stoppably(i64 milliseconds);

/// Runs a call that nothing interrupts, such as getaddrinfo(), on a thread of its own, and waits for its end. Throws
/// Interrupted as soon as is_stop_asked(); the call goes on then, so that it owns all that it uses. It throws nothing.
void run_stoppably(const std::function<void()>& call);

}  // namespace glu_ckpt
