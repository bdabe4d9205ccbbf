#include "remote/passing_hash.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <utility>

#include "core/fail.hpp"

namespace glu_ckpt {
namespace {

/// Of all files together.
std::atomic<i64> most_early = i64{32} << 20, early_of_all = 0;

}  // namespace

void PassingHash::update(const char* bytes, i64 count) {
  if (EVP_DigestUpdate(state_.get(), bytes, static_cast<std::size_t>(count)) != 1)
    fail(ErrorCode::NoMemory, {}, "SHA-256 cannot be computed");
  at_ += count;
}

void PassingHash::allow_early(i64 bytes) { most_early = bytes; }

PassingHash::~PassingHash() { drop_early(); }

bool PassingHash::keep_early(const char* bytes, i64 count, i64 offset) {
  const auto known = early_.find(offset);
  const i64 more = count - (known == early_.end() ? 0 : std::ssize(known->second));
  if (more <= 0) return true;
  // Counted before they are copied: other threads count at the same time.
  early_bytes_ += more;
  if ((early_of_all += more) > most_early || early_bytes_ > most_early / 2) return false;
  early_[offset] = std::string(bytes, static_cast<std::size_t>(count));
  return true;
}

void PassingHash::drop_early() {
  early_.clear();
  early_of_all -= std::exchange(early_bytes_, 0);
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
    } else if (!keep_early(bytes, count, offset)) {
      drop_early();
      is_over_ = true;
      return {};
    }
    offset += count;
  }
  while (!early_.empty() && early_.begin()->first <= at_) {
    const auto& [begin, bytes] = *early_.begin();
    const i64 known = std::min(at_ - begin, std::ssize(bytes));
    update(bytes.data() + known, std::ssize(bytes) - known);
    early_bytes_ -= std::ssize(bytes);
    early_of_all -= std::ssize(bytes);
    early_.erase(early_.begin());
  }
  if (at_ < size) return {};
  is_over_ = true;
  drop_early();
  std::string text;
  std::array<unsigned char, EVP_MAX_MD_SIZE> sum{};
  unsigned digits = 0;
  if (at_ == size && EVP_DigestFinal_ex(state_.get(), sum.data(), &digits) == 1)
    for (unsigned i = 0; i < digits; ++i) text += fmt::format("{:02x}", sum[i]);
  state_.reset();
  return text;
}

}  // namespace glu_ckpt
