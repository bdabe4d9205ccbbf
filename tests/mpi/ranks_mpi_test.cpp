/// The ranks of MPI under mpirun, all of them through the same checks: `ranks_mpi_test`, from 4 ranks on. Prints what
/// meson counts. `ranks_mpi_test lose`: rank 1 vanishes while the others wait for it.

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <string_view>

#include "ranks/mpi_ranks.hpp"
#include "support/ranks_contract.hpp"

namespace {

using namespace glu_ckpt;
using namespace support;

Ranks* all_ranks = nullptr;

/// Messages of several pieces, as the largest are, and of one.
TEST(MpiRanks, CarriesBytes) {
  expect_broadcasts(*all_ranks);
  expect_gathers(*all_ranks);
}

TEST(MpiRanks, CarriesBytesInPieces) {
  const auto ranks = make_mpi_ranks(/*piece_bytes=*/65'536);
  expect_broadcasts(*ranks);
  expect_gathers(*ranks);
}

TEST(MpiRanks, TakesEachNumberOnce) { expect_takes(*all_ranks, 4, 300); }

TEST(MpiRanks, QueuesEachTaskOnce) { expect_queue(*all_ranks, 4, 300); }

TEST(MpiRanks, FailsEverywhereWhereOneFails) { expect_failures(*all_ranks); }

int lose(Ranks& ranks) {
  if (ranks.rank() == 1) std::raise(SIGKILL);
  ranks.broadcast({});
  ranks.restart();
  std::printf("rank %d goes on\n", ranks.rank());
  return 0;
}

/// Only rank 0's lines are printed, but for failures.
class FailuresOnly final : public ::testing::EmptyTestEventListener {
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (result.failed())
      std::printf("rank %d: %s:%d: %s\n", all_ranks->rank(), result.file_name(), result.line_number(),
                  result.message());
  }
};

int run_tests(Ranks& ranks) {
  auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
  if (ranks.rank() != 0) {
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new FailuresOnly);
  }
  return RUN_ALL_TESTS();
}

}  // namespace

int main(int argc, char** argv) {
  MpiProgram program(argc, argv);
  ::testing::InitGoogleTest(&argc, argv);
  const auto ranks = make_mpi_ranks();
  all_ranks = ranks.get();
  if (ranks->size() < 4) {
    std::printf("run under mpirun -n 4\n");
    return 1;
  }
  if (argc > 1 && std::string_view(argv[1]) == "lose") return lose(*ranks);
  return run_tests(*ranks);
}
