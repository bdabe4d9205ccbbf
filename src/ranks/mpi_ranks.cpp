/// MPI is called by one thread at a time (MPI_THREAD_SERIALIZED): Open MPI 4.1 has one-sided operations over TCP only
/// without MPI_THREAD_MULTIPLE. Errors inside MPI end all ranks, which is MPI's own default.

#include "ranks/mpi_ranks.hpp"

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "core/fail.hpp"

namespace glu_ckpt {
namespace {

/// Where the counter stands once a rank has stopped all: no number of tasks comes near, nor do its halves overflow
/// when every rank adds it.
constexpr i64 kStopped = i64{1} << 40;

/// How long what is known of the other ranks' stopping counts as new.
constexpr std::chrono::milliseconds kNewsLifetime{200};

/// MPI's own waiting keeps a core busy. Ranks wait for each other through a whole flush of the output, so they look
/// now and then instead.
void wait(MPI_Request request) {
  constexpr std::chrono::microseconds kLongestPause{1000};
  std::chrono::microseconds pause{1};
  for (int done = 0; MPI_Test(&request, &done, MPI_STATUS_IGNORE), done == 0;) {
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongestPause);
  }
}

/// Open MPI 4 takes its one-sided operations over RDMA between nodes that have but TCP and shared memory, too, and then
/// MPI_Win_allocate fails (seen with 4.1.4). The others are by UCX, in shared memory and by messages. What the user has
/// asked for stays.
void leave_out_broken_one_sided() {
#if defined(OMPI_MAJOR_VERSION) && OMPI_MAJOR_VERSION == 4
  setenv("OMPI_MCA_osc", "^rdma", /*overwrite=*/0);
#endif
}

class MpiRanks final : public Ranks {
 public:
  explicit MpiRanks(i64 piece_bytes) : piece_bytes_(piece_bytes) {
    MPI_Comm_dup(MPI_COMM_WORLD, &comm_);
    MPI_Comm_rank(comm_, &rank_);
    MPI_Comm_size(comm_, &size_);
    MPI_Win_allocate(rank_ == 0 ? sizeof(i64) : 0, sizeof(i64), MPI_INFO_NULL, comm_, &counter_, &window_);
    MPI_Win_lock_all(MPI_MODE_NOCHECK, window_);
    restart();
  }

  ~MpiRanks() override {
    MPI_Win_unlock_all(window_);
    MPI_Win_free(&window_);
    MPI_Comm_free(&comm_);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::vector<std::byte> broadcast(std::vector<std::byte> bytes) override {
    const std::lock_guard lock(mutex_);
    i64 length = static_cast<i64>(bytes.size());
    MPI_Request request;
    MPI_Ibcast(&length, 1, MPI_INT64_T, 0, comm_, &request);
    wait(request);
    bytes.resize(static_cast<std::size_t>(length));
    for_each_piece(bytes, [&](std::byte* piece, int count) {
      MPI_Ibcast(piece, count, MPI_BYTE, 0, comm_, &request);
      wait(request);
    });
    return bytes;
  }

  std::vector<std::vector<std::byte>> gather(std::span<const std::byte> mine) override {
    const std::lock_guard lock(mutex_);
    const i64 length = static_cast<i64>(mine.size());
    std::vector<i64> lengths(rank_ == 0 ? static_cast<std::size_t>(size_) : 0);
    MPI_Request request;
    MPI_Igather(&length, 1, MPI_INT64_T, lengths.data(), 1, MPI_INT64_T, 0, comm_, &request);
    wait(request);
    if (rank_ != 0) {
      for_each_piece(mine, [&](const std::byte* piece, int count) {
        MPI_Isend(piece, count, MPI_BYTE, 0, kGatherTag, comm_, &request);
        wait(request);
      });
      return {};
    }
    std::vector<std::vector<std::byte>> all{std::vector<std::byte>(mine.begin(), mine.end())};
    for (int from = 1; from < size_; ++from) all.push_back(receive(from, lengths[static_cast<std::size_t>(from)]));
    return all;
  }

  i64 take() override {
    const std::lock_guard lock(mutex_);
    const i64 number = add(1);
    return note(number) ? -1 : number;
  }

  void restart() override {
    const std::lock_guard lock(mutex_);
    // Nobody may still take from the old count, nor from the new one before it is there.
    barrier();
    if (rank_ == 0) {
      const i64 zero = 0;
      i64 old = 0;
      MPI_Fetch_and_op(&zero, &old, MPI_INT64_T, 0, 0, MPI_REPLACE, window_);
      MPI_Win_flush(0, window_);
    }
    stopped_ = false;
    barrier();
  }

  void stop() override {
    const std::lock_guard lock(mutex_);
    if (!stopped_) add(kStopped);
    stopped_ = true;
  }

  bool stopped() override {
    const std::lock_guard lock(mutex_);
    if (!stopped_ && std::chrono::steady_clock::now() - asked_ > kNewsLifetime) note(add(0));
    return stopped_;
  }

 private:
  static constexpr int kGatherTag = 1;

  /// Adds to the counter at rank 0 and returns what it was. Where the network does not do that by itself rank 0 must be
  /// inside MPI, too: it is whenever it takes, asks, or waits.
  i64 add(i64 value) {
    i64 old = 0;
    MPI_Fetch_and_op(&value, &old, MPI_INT64_T, 0, 0, MPI_SUM, window_);
    MPI_Win_flush(0, window_);
    return old;
  }

  /// What the counter says about stopping.
  bool note(i64 count) {
    stopped_ = stopped_ || count >= kStopped;
    asked_ = std::chrono::steady_clock::now();
    return stopped_;
  }

  void barrier() {
    MPI_Request request;
    MPI_Ibarrier(comm_, &request);
    wait(request);
  }

  template <typename Bytes, typename Visit>
  void for_each_piece(Bytes& bytes, const Visit& visit) const {
    const i64 length = static_cast<i64>(bytes.size());
    for (i64 at = 0; at < length; at += piece_bytes_)
      visit(bytes.data() + at, static_cast<int>(std::min(piece_bytes_, length - at)));
  }

  std::vector<std::byte> receive(int from, i64 length) const {
    std::vector<std::byte> bytes(static_cast<std::size_t>(length));
    for_each_piece(bytes, [&](std::byte* piece, int count) {
      MPI_Request request;
      MPI_Irecv(piece, count, MPI_BYTE, from, kGatherTag, comm_, &request);
      wait(request);
    });
    return bytes;
  }

  const i64 piece_bytes_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  MPI_Win window_ = MPI_WIN_NULL;
  int rank_ = 0;
  int size_ = 1;
  /// In MPI's memory; rank 0's is everybody's.
  i64* counter_ = nullptr;
  /// Held during every call of MPI.
  std::mutex mutex_;
  bool stopped_ = false;
  std::chrono::steady_clock::time_point asked_{};
};

}  // namespace

MpiProgram::MpiProgram(int& argc, char**& argv) {
  leave_out_broken_one_sided();
  int provided = MPI_THREAD_SINGLE;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
  if (provided >= MPI_THREAD_SERIALIZED) return;
  MPI_Finalize();
  fail(ErrorCode::NotSupported, {}, "this MPI cannot be called from several threads in turn (MPI_THREAD_SERIALIZED)");
}

MpiProgram::~MpiProgram() { MPI_Finalize(); }

void MpiProgram::abort(int status) {
  MPI_Abort(MPI_COMM_WORLD, status);
  std::_Exit(status);
}

std::unique_ptr<Ranks> make_mpi_ranks(i64 piece_bytes) { return std::make_unique<MpiRanks>(piece_bytes); }

}  // namespace glu_ckpt
