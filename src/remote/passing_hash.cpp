#include "remote/passing_hash.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>

#include "core/fail.hpp"

namespace glu_ckpt {
namespace {

/// Of one file, and of all.
constexpr i64 kMostEarlyBytes = i64{16} << 20, kMostEarlyOfAll = i64{32} << 20;
std::atomic<i64> early_of_all{0};

}  // namespace

void PassingHash::update(const char* bytes, i64 count) {
  if (EVP_DigestUpdate(state_.get(), bytes, static_cast<std::size_t>(count)) != 1)
    fail(ErrorCode::NoMemory, {}, "SHA-256 cannot be computed");
  at_ += count;
}

PassingHash::~PassingHash() { early_of_all -= early_bytes_; }

void PassingHash::count_early(i64 bytes) {
  early_bytes_ += bytes;
  early_of_all += bytes;
}

std::string PassingHash::take(std::span<const iovec> pieces, i64 offset, i64 size) {
  const std::lock_guard lock(mutex_);
  if (is_over_) return {};
  if (!state_) {
    state_.reset(EVP_MD_CTX_new());
    if (!state_ || EVP_DigestInit_ex(state_.get(), EVP_sha256(), nullptr) != 1)
      fail(ErrorCode::NoMemory, {}, "SHA-256 cannot be computed");
  }
  for (const iovec& piece : pieces) {
    const auto* const bytes = static_cast<const char*>(piece.iov_base);
    const auto count = static_cast<i64>(piece.iov_len);
    const i64 known = std::clamp(at_ - offset, i64{0}, count);
    if (offset <= at_) {
      update(bytes + known, count - known);
    } else if (std::string& early = early_[offset]; std::ssize(early) < count) {
      count_early(count - std::ssize(early));
      early.assign(bytes, static_cast<std::size_t>(count));
    }
    offset += count;
  }
  while (!early_.empty() && early_.begin()->first <= at_) {
    const auto& [begin, bytes] = *early_.begin();
    const i64 known = std::min(at_ - begin, std::ssize(bytes));
    update(bytes.data() + known, std::ssize(bytes) - known);
    count_early(-std::ssize(bytes));
    early_.erase(early_.begin());
  }
  if (at_ < size && early_bytes_ <= kMostEarlyBytes && (early_bytes_ == 0 || early_of_all <= kMostEarlyOfAll))
    return {};
  is_over_ = true;
  early_.clear();
  count_early(-early_bytes_);
  std::string text;
  std::array<unsigned char, EVP_MAX_MD_SIZE> sum{};
  unsigned digits = 0;
  if (at_ == size && EVP_DigestFinal_ex(state_.get(), sum.data(), &digits) == 1)
    for (unsigned i = 0; i < digits; ++i) text += fmt::format("{:02x}", sum[i]);
  state_.reset();
  return text;
}

}  // namespace glu_ckpt
