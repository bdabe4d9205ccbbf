#include "report/text/progress.hpp"

#include <gtest/gtest.h>

#include <set>
#include <utility>

namespace glu_ckpt::report {
namespace {

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(Progress, ALineFitsAnyTerminal) {
  for (const i64 done : {i64{0}, i64{1}, i64{123'456'789'012}, i64{999'999'999'999}, i64{1'000'000'000'000}})
    for (const double seconds : {0.0, 0.5, 59.6, 4000.0, 1e7})
      for (const std::string& bottleneck : {std::string(), std::string("reading")})
        for (std::size_t columns = 1; columns < 160; ++columns) {
          const std::string line = progress_line({"converting", done, 1'000'000'000'000, seconds, bottleneck}, columns);
          ASSERT_LT(line.size(), columns) << line;
          // The percentage is what is left at last.
          ASSERT_TRUE(columns < 6 || has(line, "%")) << columns << ": " << line;
        }
}

TEST(Progress, LeavesOutTheLeastImportantFirst) {
  const ProgressState state{"converting", 250'000'000, 1'000'000'000, 5, "writing"};
  const std::string whole = "converting  25%  250.00 MB of 1.00 GB  50.00 MB/s  15 s left  mostly writing";
  EXPECT_EQ(progress_line(state), whole);
  EXPECT_EQ(progress_line(state, 76), "converting  [==>       ]  25%  250.00 MB of 1.00 GB  50.00 MB/s  15 s left");
  EXPECT_EQ(progress_line(state, 69), "converting  25%  250.00 MB of 1.00 GB  50.00 MB/s  15 s left");
  EXPECT_EQ(progress_line(state, 62), "converting  25%  250.00 MB of 1.00 GB  50.00 MB/s  15 s left");
  EXPECT_EQ(progress_line(state, 42), "converting  25%  50.00 MB/s  15 s left");
  EXPECT_EQ(progress_line(state, 30), "converting  25%  15 s left");
  EXPECT_EQ(progress_line(state, 17), "converting  25%");
  EXPECT_EQ(progress_line(state, 8), "25%");
  EXPECT_EQ(progress_line(state, 120),
            "converting  [=====>              ]  25%  250.00 MB of 1.00 GB  50.00 MB/s  15 s left  mostly writing");
}

TEST(Progress, TheBarHasOneWidth) {
  for (const std::size_t columns : {80, 100, 160}) {
    std::set<std::pair<std::size_t, std::size_t>> ends;
    for (const i64 done : {i64{0}, i64{1}, i64{123'456'789}, i64{999'999'999}, i64{1'000'000'000}})
      for (const double seconds : {0.0, 0.5, 59.6, 4000.0, 1e7})
        for (const std::string& bottleneck : {std::string(), std::string("reading")}) {
          const std::string line = progress_line({"converting", done, 1'000'000'000, seconds, bottleneck}, columns);
          ends.emplace(line.find('['), line.find(']'));
        }
    EXPECT_EQ(ends.size(), 1U) << columns;
    EXPECT_LT(ends.begin()->second, columns);
  }
}

TEST(Progress, SaysHowLongItTookAtTheEnd) {
  EXPECT_EQ(progress_line({"verify", 4000, 4000, 2, ""}), "verify  100%  4.00 kB of 4.00 kB  2.00 kB/s  2 s");
  // A stage without bytes is done, and nobody divides by them.
  EXPECT_TRUE(has(progress_line({"verify", 0, 0, 0, ""}), "100%"));
  EXPECT_TRUE(has(progress_line({"verify", 999, 1000, 1, ""}), "  99%  "));
}

TEST(Progress, Durations) {
  EXPECT_EQ(duration_text(0.4), "0 s");
  EXPECT_EQ(duration_text(59.4), "59 s");
  EXPECT_EQ(duration_text(59.6), "1 min 0 s");
  EXPECT_EQ(duration_text(3600), "1 h 0 min");
  EXPECT_EQ(duration_text(7530), "2 h 5 min");
  EXPECT_EQ(duration_text(-3), "0 s");
}

}  // namespace
}  // namespace glu_ckpt::report
