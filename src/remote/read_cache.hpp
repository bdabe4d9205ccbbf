#pragma once
/// Bytes of files that stay in memory between reads: their heads, and what was read ahead. There is one lot for all
/// addresses of the process.

#include <deque>
#include <memory>
#include <mutex>
#include <string>

#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

class ReadCache {
 public:
  enum class Kind { WholeFile, Part };

  /// Room for bytes that are on their way. It is free again at the end of its life.
  class Room {
   public:
    Room(ReadCache* cache, i64 bytes) : cache_(cache), bytes_(bytes) {}
    Room(const Room&) = delete;
    Room& operator=(const Room&) = delete;
    ~Room();
    /// False where there is no room.
    explicit operator bool() const { return cache_ != nullptr; }

   private:
    ReadCache* cache_;
    i64 bytes_;
  };

  explicit ReadCache(i64 most_bytes) : most_bytes_(most_bytes) {}

  i64 most_bytes() const;
  void set_most_bytes(i64 bytes);
  /// Drops older bytes, as far as they must go, to make room for half of what may be kept or less.
  Room make_room(i64 bytes);
  /// Keeps these bytes and drops older ones: parts first, for they are read once, and small files several times.
  void keep(const std::shared_ptr<const std::string>& bytes, Kind kind);

 private:
  struct Kept {
    std::shared_ptr<const std::string> bytes;
    Kind kind;
  };

  /// Drops the oldest until `bytes` fit beside the others, or only the newest is left.
  void drop_for(i64 bytes);

  mutable std::mutex mutex_;
  i64 most_bytes_;
  std::deque<Kept> kept_;
  i64 kept_bytes_ = 0;
  i64 coming_bytes_ = 0;
};

}  // namespace glu_ckpt
