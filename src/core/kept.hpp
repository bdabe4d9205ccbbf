#pragma once
/// Values that are made when they are first asked for.

#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

/// Values that several threads use; those used last stay, within a number of bytes, and the last one.
template <typename Value>
class Kept {
 public:
  explicit Kept(i64 most_bytes) : most_bytes_(most_bytes) {}

  template <typename Make>
  std::shared_ptr<const Value> get(std::size_t key, const Make& make) {
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = values_.find(key); found != values_.end()) {
        order_.splice(order_.begin(), order_, found->second.place);
        return found->second.value;
      }
    }
    auto made = std::make_shared<const Value>(make());
    const std::lock_guard lock(mutex_);
    if (const auto found = values_.find(key); found != values_.end()) return found->second.value;
    order_.push_front(key);
    values_.emplace(key, Entry{made, order_.begin()});
    bytes_ += made->bytes();
    while (bytes_ > most_bytes_ && order_.size() > 1) {
      const auto last = values_.find(order_.back());
      bytes_ -= last->second.value->bytes();
      values_.erase(last);
      order_.pop_back();
    }
    return made;
  }

 private:
  struct Entry {
    std::shared_ptr<const Value> value;
    std::list<std::size_t>::iterator place;
  };
  const i64 most_bytes_;
  std::mutex mutex_;
  std::list<std::size_t> order_;
  std::map<std::size_t, Entry> values_;
  i64 bytes_ = 0;
};

/// Bytes as such a value.
struct KeptBytes {
  std::vector<std::byte> data;
  i64 bytes() const { return std::ssize(data); }
};

}  // namespace glu_ckpt
