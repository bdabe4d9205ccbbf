/// MPI is called by one thread at a time (MPI_THREAD_SERIALIZED), and messages alone carry the counter of tasks: rank 0
/// has a thread that answers. One-sided operations would do without it, but with Open MPI 4.1.4 over TCP
/// MPI_Win_allocate fails (osc/rdma), or an operation waits for ever (osc/ucx, where rank 0 computes rather than
/// communicates). Errors inside MPI end all ranks, which is MPI's own default.

#include "ranks/mpi_ranks.hpp"

#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <utility>

#include "core/fail.hpp"

namespace glu_ckpt {
namespace {

/// The value of the counter once a rank has stopped all: no number of tasks comes near, nor do its halves overflow when
/// every rank adds it.
constexpr i64 kStopped = i64{1} << 40;

/// The time for which what is known of the other ranks' stopping counts as new.
constexpr std::chrono::milliseconds kNewsLifetime{200};

class MpiRanks final : public Ranks {
 public:
  explicit MpiRanks(i64 piece_bytes) : piece_bytes_(piece_bytes) {
    MPI_Comm_dup(MPI_COMM_WORLD, &comm_);
    MPI_Comm_rank(comm_, &rank_);
    MPI_Comm_size(comm_, &size_);
    if (rank_ == 0 && size_ > 1) server_ = std::thread([this] { serve(); });
  }

  ~MpiRanks() override {
    {
      std::unique_lock lock(mutex_);
      barrier(lock);
    }
    over_ = true;
    if (server_.joinable()) server_.join();
    MPI_Comm_free(&comm_);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::vector<std::byte> broadcast(std::vector<std::byte> bytes) override {
    std::unique_lock lock(mutex_);
    i64 length = static_cast<i64>(bytes.size());
    MPI_Request request;
    MPI_Ibcast(&length, 1, MPI_INT64_T, 0, comm_, &request);
    wait(request, lock);
    bytes.resize(static_cast<std::size_t>(length));
    for_each_piece(bytes, [&](std::byte* piece, int count) {
      MPI_Ibcast(piece, count, MPI_BYTE, 0, comm_, &request);
      wait(request, lock);
    });
    return bytes;
  }

  std::vector<std::vector<std::byte>> gather(std::span<const std::byte> mine) override {
    std::unique_lock lock(mutex_);
    const i64 length = static_cast<i64>(mine.size());
    std::vector<i64> lengths(rank_ == 0 ? static_cast<std::size_t>(size_) : 0);
    MPI_Request request;
    MPI_Igather(&length, 1, MPI_INT64_T, lengths.data(), 1, MPI_INT64_T, 0, comm_, &request);
    wait(request, lock);
    if (rank_ != 0) {
      for_each_piece(mine, [&](const std::byte* piece, int count) {
        MPI_Isend(piece, count, MPI_BYTE, 0, kGatherTag, comm_, &request);
        wait(request, lock);
      });
      return {};
    }
    std::vector<std::vector<std::byte>> all{std::vector<std::byte>(mine.begin(), mine.end())};
    for (int from = 1; from < size_; ++from)
      all.push_back(receive(from, lengths[static_cast<std::size_t>(from)], lock));
    return all;
  }

  i64 take() override {
    std::unique_lock lock(mutex_);
    const i64 number = add(1, lock);
    return note(number) ? -1 : number;
  }

  void restart() override {
    std::unique_lock lock(mutex_);
    // Nobody may still take from the old count, nor from the new one before it is there.
    barrier(lock);
    if (rank_ == 0) count_ = 0;
    stopped_ = false;
    barrier(lock);
  }

  void stop() override {
    std::unique_lock lock(mutex_);
    if (!stopped_) add(kStopped, lock);
    stopped_ = true;
  }

  bool stopped() override {
    std::unique_lock lock(mutex_);
    if (!stopped_ && std::chrono::steady_clock::now() - asked_ > kNewsLifetime) note(add(0, lock));
    return stopped_;
  }

 private:
  using Lock = std::unique_lock<std::mutex>;
  static constexpr int kGatherTag = 1;
  static constexpr int kAddTag = 2;
  static constexpr int kAnswerTag = 3;

  /// Adds to the counter at rank 0 and returns what it was.
  i64 add(i64 value, Lock& lock) {
    if (rank_ == 0) return std::exchange(count_, count_ + value);
    // Answers have no names, so one of a rank is asked for at a time.
    asking_done_.wait(lock, [&] { return !asking_; });
    asking_ = true;
    i64 old = 0;
    MPI_Request answer, request;
    MPI_Irecv(&old, 1, MPI_INT64_T, 0, kAnswerTag, comm_, &answer);
    MPI_Isend(&value, 1, MPI_INT64_T, 0, kAddTag, comm_, &request);
    wait(request, lock);
    wait(answer, lock);
    asking_ = false;
    asking_done_.notify_one();
    return old;
  }

  /// Rank 0's answers to add().
  void serve() {
    constexpr std::chrono::microseconds kPause{200};
    while (!over_) {
      {
        std::unique_lock lock(mutex_);
        int asked = 0;
        MPI_Status from;
        while (MPI_Iprobe(MPI_ANY_SOURCE, kAddTag, comm_, &asked, &from), asked != 0) answer(from.MPI_SOURCE, lock);
      }
      std::this_thread::sleep_for(kPause);
    }
  }

  void answer(int rank, Lock& lock) {
    i64 value = 0;
    MPI_Recv(&value, 1, MPI_INT64_T, rank, kAddTag, comm_, MPI_STATUS_IGNORE);
    const i64 old = std::exchange(count_, count_ + value);
    MPI_Request request;
    MPI_Isend(&old, 1, MPI_INT64_T, rank, kAnswerTag, comm_, &request);
    wait(request, lock);
  }

  /// MPI's own waiting keeps a core busy and other threads out. Ranks wait for each other through a whole flush of the
  /// output, so they look now and then instead.
  static void wait(MPI_Request request, Lock& lock) {
    constexpr std::chrono::microseconds kLongestPause{1000};
    std::chrono::microseconds pause{1};
    for (int done = 0; MPI_Test(&request, &done, MPI_STATUS_IGNORE), done == 0;) {
      lock.unlock();
      std::this_thread::sleep_for(pause);
      lock.lock();
      pause = std::min(2 * pause, kLongestPause);
    }
  }

  /// Notes what the counter says about stopping.
  bool note(i64 count) {
    stopped_ = stopped_ || count >= kStopped;
    asked_ = std::chrono::steady_clock::now();
    return stopped_;
  }

  void barrier(Lock& lock) {
    MPI_Request request;
    MPI_Ibarrier(comm_, &request);
    wait(request, lock);
  }

  template <typename Bytes, typename Visit>
  void for_each_piece(Bytes& bytes, const Visit& visit) const {
    const i64 length = static_cast<i64>(bytes.size());
    for (i64 at = 0; at < length; at += piece_bytes_)
      visit(bytes.data() + at, static_cast<int>(std::min(piece_bytes_, length - at)));
  }

  std::vector<std::byte> receive(int from, i64 length, Lock& lock) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(length));
    for_each_piece(bytes, [&](std::byte* piece, int count) {
      MPI_Request request;
      MPI_Irecv(piece, count, MPI_BYTE, from, kGatherTag, comm_, &request);
      wait(request, lock);
    });
    return bytes;
  }

  const i64 piece_bytes_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 1;
  /// Held during every call of MPI, and for what follows.
  std::mutex mutex_;
  /// The next number, at rank 0.
  i64 count_ = 0;
  /// Elsewhere: whether a thread waits for an answer.
  bool asking_ = false;
  std::condition_variable asking_done_;
  bool stopped_ = false;
  std::chrono::steady_clock::time_point asked_{};
  std::atomic<bool> over_{false};
  std::thread server_;
};

}  // namespace

MpiProgram::MpiProgram(int& argc, char**& argv) {
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
