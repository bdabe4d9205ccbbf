#include "io/page_spool.hpp"

#include <algorithm>
#include <utility>

namespace glu_ckpt {

bool PageSpool::try_put(std::span<const std::byte> pages, const File& file, i64 offset) {
  const auto bytes = static_cast<i64>(pages.size());
  Chunk full;
  i64 at = 0;
  {
    const std::lock_guard lock(mutex_);
    if (!open()) return false;
    if (filling_.bytes + bytes > kChunkBytes) {
      full = std::exchange(filling_, take_empty());
      at = std::exchange(end_, end_ + full.bytes);
    }
    std::ranges::copy(pages, filling_.pages.get() + filling_.bytes);
    filling_.places.push_back({&file, offset, bytes});
    filling_.bytes += bytes;
  }
  if (full.bytes == 0) return true;
  move_out(full, at);
  const std::lock_guard lock(mutex_);
  empty_.push_back(std::move(full));
  return true;
}

void PageSpool::flush() {
  const std::lock_guard lock(mutex_);
  if (end_ + filling_.bytes == 0) return;
  const i64 at = std::exchange(end_, end_ + filling_.bytes);
  move_out(filling_, at);
  file_.sync();
}

bool PageSpool::open() {
  if (!opened_) {
    opened_ = true;
    file_ = File::unnamed(directory_, /*direct=*/true);
    if (file_.is_open()) filling_ = take_empty();
  }
  return file_.is_open();
}

PageSpool::Chunk PageSpool::take_empty() {
  if (empty_.empty()) return {make_pages(kChunkBytes), 0, {}};
  Chunk chunk = std::move(empty_.back());
  empty_.pop_back();
  return chunk;
}

/// Pages that cannot be shared are written where they belong; an error then names the file that had no room for them.
void PageSpool::move_out(Chunk& chunk, i64 at) {
  const std::lock_guard lock(moving_);
  const bool written = try_write({chunk.pages.get(), static_cast<std::size_t>(chunk.bytes)}, at);
  const std::byte* from = chunk.pages.get();
  for (const Place& place : chunk.places) {
    if (!written || !place.file->try_clone_from(file_, at, place.offset, place.bytes))
      place.file->pwrite_exact({from, static_cast<std::size_t>(place.bytes)}, place.offset);
    at += place.bytes;
    from += place.bytes;
  }
  chunk.bytes = 0;
  chunk.places.clear();
}

bool PageSpool::try_write(std::span<const std::byte> bytes, i64 at) const {
  try {
    file_.pwrite_exact(bytes, at);
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace glu_ckpt
