#include "remote/read_cache.hpp"

#include <algorithm>

namespace glu_ckpt {

ReadCache::Room::~Room() {
  if (cache_ == nullptr) return;
  const std::lock_guard lock(cache_->mutex_);
  cache_->coming_bytes_ -= bytes_;
}

i64 ReadCache::most_bytes() const {
  const std::lock_guard lock(mutex_);
  return most_bytes_;
}

void ReadCache::set_most_bytes(i64 bytes) {
  const std::lock_guard lock(mutex_);
  most_bytes_ = bytes;
}

void ReadCache::drop_for(i64 bytes) {
  while (kept_bytes_ + coming_bytes_ + bytes > most_bytes_ && !kept_.empty()) {
    auto oldest = std::ranges::find(kept_, Kind::Part, &Kept::kind);
    if (oldest == kept_.end()) oldest = kept_.begin();
    kept_bytes_ -= std::ssize(*oldest->bytes);
    kept_.erase(oldest);
  }
}

ReadCache::Room ReadCache::make_room(i64 bytes) {
  const std::lock_guard lock(mutex_);
  if (coming_bytes_ + bytes > most_bytes_ / 2) return {nullptr, 0};
  drop_for(bytes);
  coming_bytes_ += bytes;
  return {this, bytes};
}

void ReadCache::keep(const std::shared_ptr<const std::string>& bytes, Kind kind) {
  const std::lock_guard lock(mutex_);
  drop_for(std::ssize(*bytes));
  if (kept_bytes_ + coming_bytes_ + std::ssize(*bytes) > most_bytes_) return;
  kept_.push_back({bytes, kind});
  kept_bytes_ += std::ssize(*bytes);
}

}  // namespace glu_ckpt
