#pragma once
/// Pages whose places lie far apart in large files: gathered in memory, written next to each other into a file without
/// a name, and shared by their files from there. Where blocks can be shared, a filesystem takes about half of the time
/// for that which it takes to find room for as many single pages and to write them (docs/performance.md).

#include <filesystem>
#include <mutex>
#include <span>
#include <vector>

#include "io/file.hpp"
#include "io/page_bytes.hpp"

namespace glu_ckpt {

class PageSpool {
 public:
  /// The most that is put at once.
  static constexpr i64 kChunkBytes = i64{1} << 20;

  /// `directory` is on the filesystem of all files; nothing is made in it before the first put().
  explicit PageSpool(std::filesystem::path directory) : directory_(std::move(directory)) {}
  PageSpool(const PageSpool&) = delete;
  PageSpool& operator=(const PageSpool&) = delete;

  /// Takes whole pages for a page's start of `file`, which stays open until flush(); when they are in it is not said.
  /// False, with nothing taken, where the filesystem has no files without names. Thread safe. Throws NoSpace, Io, also
  /// about what was put before.
  bool try_put(std::span<const std::byte> pages, const File& file, i64 offset);
  /// All that was put is in its files, and flushed as far as it is not theirs to flush. No try_put() runs meanwhile.
  void flush();

 private:
  struct Place {
    const File* file = nullptr;
    i64 offset = 0;
    i64 bytes = 0;
  };
  /// Pages, and where each goes.
  struct Chunk {
    PageBytes pages;
    i64 bytes = 0;
    std::vector<Place> places;
  };

  bool open();
  Chunk take_empty();
  void move_out(Chunk& chunk, i64 at);
  bool try_write(std::span<const std::byte> bytes, i64 at) const;

  std::filesystem::path directory_;
  std::mutex mutex_;
  /// Two threads that clone into one file wait for each other in the kernel, and longer.
  std::mutex moving_;
  bool opened_ = false;
  File file_;
  /// The end of that part of the file that was given to chunks.
  i64 end_ = 0;
  Chunk filling_;
  std::vector<Chunk> empty_;
};

}  // namespace glu_ckpt
