/// Calls that fail, are cut short or interrupted.

#include <gtest/gtest.h>

#include <cerrno>

#include "faults/fault_bench.hpp"

namespace glu_ckpt::faults {
namespace {

class ConversionErrors : public testing::TestWithParam<Target> {
 protected:
  FaultBench bench_{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(To, ConversionErrors, testing::ValuesIn(all_targets()), name_of_target);

/// A conversion goes on past it, or says that the machine failed and can be resumed.
void expect_survives(FaultBench& bench, CallKind kind, i64 number, int error) {
  SCOPED_TRACE(testing::Message() << "call " << number << " of kind " << static_cast<int>(kind) << " fails with "
                                  << error);
  bench.begin();
  bench.memory().fail(kind, number, error);
  const Outcome outcome = bench.convert();
  bench.memory().reset();
  EXPECT_EQ(bench.memory().open_descriptors(), 0);
  bench.expect_nothing_lost();
  if (outcome.status == ExitStatus::Done) {
    EXPECT_TRUE(bench.has_output());
    EXPECT_FALSE(bench.has_staging());
    return;
  }
  EXPECT_EQ(outcome.status, ExitStatus::MachineFailed) << outcome.slug << ": " << outcome.message;
  const bool no_space = error == ENOSPC || error == EDQUOT;
  EXPECT_EQ(outcome.slug, no_space ? "no-space" : "io") << outcome.message;
  bench.expect_resumes();
}

TEST_P(ConversionErrors, AtAnyCallLoseNothing) {
  for (const int error : {EIO, ENOSPC, EDQUOT})
    for (const CallKind kind : all_kinds())
      // EDQUOT is ENOSPC by another name: a sample of it will do.
      for (i64 n = 1; n <= bench_.calls(kind); n += bench_.step() * (error == EDQUOT ? 7 : 1)) {
        if (one_way_each() && error == ((n + kFirstWay) % 2 == 0 ? EIO : ENOSPC)) continue;
        expect_survives(bench_, kind, n, error);
        if (HasFailure()) return;
      }
}

TEST_P(ConversionErrors, InterruptedCallsAreMadeAgain) {
  for (const CallKind kind : {CallKind::Open, CallKind::Read, CallKind::Write, CallKind::Sync, CallKind::Reserve,
                              CallKind::Resize, CallKind::Lock, CallKind::Mode})
    for (i64 n = 1; n <= bench_.calls(kind); n += bench_.step()) {
      SCOPED_TRACE(testing::Message() << "call " << n << " of kind " << static_cast<int>(kind));
      bench_.begin();
      bench_.memory().fail(kind, n, EINTR);
      const Outcome outcome = bench_.convert();
      EXPECT_EQ(outcome.status, ExitStatus::Done) << outcome.message;
      bench_.expect_nothing_lost();
      EXPECT_TRUE(bench_.has_output());
      if (HasFailure()) return;
    }
  bench_.begin();
  bench_.memory().interrupt(true);
  EXPECT_EQ(bench_.convert().status, ExitStatus::Done);
  bench_.memory().reset();
  bench_.expect_nothing_lost();
  EXPECT_TRUE(bench_.has_output());
}

TEST_P(ConversionErrors, ShortReadsAndWritesGoOn) {
  for (const Transfer transfer : {Transfer::Half, Transfer::OneByte}) {
    bench_.begin();
    bench_.memory().set_transfer(transfer);
    const Outcome outcome = bench_.convert();
    EXPECT_EQ(outcome.status, ExitStatus::Done) << outcome.message;
    bench_.memory().reset();
    bench_.expect_nothing_lost();
    EXPECT_TRUE(bench_.has_output());
  }
}

/// Room for some of the output: what is there is resumed once there is more.
TEST_P(ConversionErrors, AFullDiskIsResumed) {
  for (i64 free_bytes = 0; free_bytes < (i64{256} << 10); free_bytes += i64{12} << 10) {
    SCOPED_TRACE(free_bytes);
    bench_.begin();
    bench_.memory().set_free_bytes(free_bytes);
    const Outcome outcome = bench_.convert();
    bench_.memory().set_free_bytes(i64{1} << 40);
    bench_.expect_nothing_lost();
    if (outcome.status == ExitStatus::Done) continue;
    EXPECT_EQ(outcome.slug, "no-space") << outcome.message;
    bench_.expect_resumes();
  }
}

std::vector<Target> consuming_targets() {
  std::vector<Target> consuming;
  for (const Target& target : all_targets())
    if (target.options.consume_source) consuming.push_back(target);
  return consuming;
}

class ConsumingErrors : public ConversionErrors {};
INSTANTIATE_TEST_SUITE_P(To, ConsumingErrors, testing::ValuesIn(consuming_targets()), name_of_target);

/// Whoever has no second copy must not find out half way that the headers of the output have no room: what a format
/// puts around each tensor is known before.
TEST_P(ConsumingErrors, AFullDiskIsSeenBeforeTheSourceGoes) {
  int full = 0, done = 0;
  for (i64 free_bytes = i64{64} << 10; free_bytes < (i64{512} << 10); free_bytes += i64{4} << 10) {
    SCOPED_TRACE(free_bytes);
    bench_.begin();
    bench_.memory().set_free_bytes(free_bytes);
    const Outcome outcome = bench_.convert();
    (outcome.status == ExitStatus::Done ? done : full) += 1;
    if (outcome.status == ExitStatus::Done) continue;
    EXPECT_EQ(outcome.slug, "no-space") << outcome.message;
    EXPECT_TRUE(bench_.has_whole_source()) << outcome.message;
  }
  EXPECT_GT(full, 0);
  EXPECT_GT(done, 0);
}

}  // namespace
}  // namespace glu_ckpt::faults
