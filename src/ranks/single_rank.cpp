#include <atomic>

#include "glu_ckpt/ranks.hpp"

namespace glu_ckpt {
namespace {

class SingleRank final : public Ranks {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::vector<std::byte> broadcast(std::vector<std::byte> bytes) override { return bytes; }
  std::vector<std::vector<std::byte>> gather(std::span<const std::byte> mine) override {
    return {std::vector<std::byte>(mine.begin(), mine.end())};
  }
  i64 take() override { return stopped_ ? -1 : next_++; }
  void restart() override {
    next_ = 0;
    stopped_ = false;
  }
  void stop() override { stopped_ = true; }
  bool stopped() override { return stopped_; }

 private:
  std::atomic<i64> next_{0};
  std::atomic<bool> stopped_{false};
};

}  // namespace

std::unique_ptr<Ranks> make_single_rank() { return std::make_unique<SingleRank>(); }

}  // namespace glu_ckpt
