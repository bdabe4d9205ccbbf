#include "support/thread_ranks.hpp"

#include <exception>
#include <thread>

namespace glu_ckpt::support {
namespace {

/// What the ranks share.
class Meeting {
 public:
  explicit Meeting(int size) : posted(static_cast<std::size_t>(size)), size_(size) {}

  /// Returns when all ranks have come here.
  void meet() {
    std::unique_lock lock(mutex);
    const i64 round = round_;
    if (++here_ == size_) {
      here_ = 0;
      ++round_;
      all_here_.notify_all();
    }
    all_here_.wait(lock, [&] { return round_ != round; });
  }

  std::mutex mutex;
  std::vector<std::vector<std::byte>> posted;
  i64 next = 0;
  bool stopped = false;

 private:
  int size_;
  int here_ = 0;
  i64 round_ = 0;
  std::condition_variable all_here_;
};

class ThreadRank final : public Ranks {
 public:
  ThreadRank(Meeting& meeting, int rank, int size) : meeting_(meeting), rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::vector<std::byte> broadcast(std::vector<std::byte> bytes) override {
    if (rank_ == 0) meeting_.posted[0] = bytes;
    meeting_.meet();
    if (rank_ != 0) bytes = meeting_.posted[0];
    meeting_.meet();
    return bytes;
  }

  std::vector<std::vector<std::byte>> gather(std::span<const std::byte> mine) override {
    meeting_.posted[static_cast<std::size_t>(rank_)].assign(mine.begin(), mine.end());
    meeting_.meet();
    std::vector<std::vector<std::byte>> all;
    if (rank_ == 0) all = meeting_.posted;
    meeting_.meet();
    return all;
  }

  i64 take() override {
    const std::lock_guard lock(meeting_.mutex);
    return meeting_.stopped ? -1 : meeting_.next++;
  }

  void restart() override {
    meeting_.meet();
    if (rank_ == 0) {
      meeting_.next = 0;
      meeting_.stopped = false;
    }
    meeting_.meet();
  }

  void stop() override {
    const std::lock_guard lock(meeting_.mutex);
    meeting_.stopped = true;
  }

  bool stopped() override {
    const std::lock_guard lock(meeting_.mutex);
    return meeting_.stopped;
  }

 private:
  Meeting& meeting_;
  int rank_;
  int size_;
};

}  // namespace

void run_thread_ranks(int size, const std::function<void(Ranks&)>& program) {
  Meeting meeting(size);
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      try {
        ThreadRank ranks(meeting, rank, size);
        program(ranks);
      } catch (...) {
        failures[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures)
    if (failure) std::rethrow_exception(failure);
}

}  // namespace glu_ckpt::support
