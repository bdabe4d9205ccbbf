/// The power goes at any call, of a conversion or of one that resumes another.

#include <gtest/gtest.h>

#include <cerrno>

#include "faults/fault_bench.hpp"

namespace glu_ckpt::faults {
namespace {

class ConversionCrashes : public testing::TestWithParam<Target> {
 protected:
  FaultBench bench_{GetParam()};

  void crash_at(i64 call, Crash what) {
    bench_.begin();
    bench_.memory().stop_at(call);
    (void)bench_.convert();
    bench_.memory().crash(what);
    bench_.memory().reset();
    bench_.expect_nothing_lost();
  }
};
INSTANTIATE_TEST_SUITE_P(To, ConversionCrashes, testing::ValuesIn(all_targets()), name_of_target);

TEST_P(ConversionCrashes, AtAnyCallAreResumed) {
  for (i64 n = 1; n <= bench_.calls(); n += bench_.step())
    for (const Crash what : kCrashes) {
      const auto way = static_cast<std::size_t>(n + kFirstWay) % kCrashes.size();
      if (one_way_each() && what != kCrashes[way]) continue;
      SCOPED_TRACE(testing::Message() << "crash " << static_cast<int>(what) << " at call " << n);
      crash_at(n, what);
      // With nothing written yet, one way to crash is as good as another.
      const bool untouched = what == Crash::KeepAll && !bench_.has_staging() && !bench_.has_output();
      bench_.expect_resumes();
      if (HasFailure()) return;
      if (untouched) break;
    }
}

/// A resumed run may itself fail or crash, and the next one goes on.
TEST_P(ConversionCrashes, WhileResumingAreResumed) {
  const i64 calls = bench_.calls();
  for (i64 first = calls / 3; first < calls; first += calls / 7)
    for (i64 second = 1; second <= calls; second += 11 * bench_.step()) {
      const Crash what = kCrashes[static_cast<std::size_t>(first + second) % kCrashes.size()];
      SCOPED_TRACE(testing::Message() << "crash " << static_cast<int>(what) << " at call " << first
                                      << ", and resuming at " << second);
      crash_at(first, what);
      bench_.memory().stop_at(second);
      (void)bench_.convert(true);
      bench_.memory().crash(what);
      bench_.memory().reset();
      bench_.expect_nothing_lost();
      bench_.expect_resumes();
      if (HasFailure()) return;
    }
}

TEST_P(ConversionCrashes, ErrorsWhileResumingAreResumed) {
  const i64 calls = bench_.calls();
  for (i64 first = calls / 3; first < calls; first += calls / 5)
    for (i64 second = 1; second <= calls; second += 13 * bench_.step()) {
      SCOPED_TRACE(testing::Message() << "crash at call " << first << ", and resuming an error at " << second);
      crash_at(first, Crash::KeepAll);
      bench_.memory().fail(second, second % 2 == 0 ? EIO : ENOSPC);
      const Outcome outcome = bench_.convert(true);
      bench_.memory().reset();
      bench_.expect_nothing_lost();
      if (outcome.status == ExitStatus::Done) continue;
      if (!bench_.has_output()) {
        EXPECT_EQ(outcome.status, ExitStatus::MachineFailed) << outcome.slug << ": " << outcome.message;
      }
      bench_.expect_resumes();
      if (HasFailure()) return;
    }
}

}  // namespace
}  // namespace glu_ckpt::faults
