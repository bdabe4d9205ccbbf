#include "io/input_file.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/checked_math.hpp"
#include "io/filesystem.hpp"
#include "io/page_bytes.hpp"

namespace glu_ckpt {
namespace {

/// Fewer bytes are in the cache soon, and cost little there.
constexpr i64 kLeastBytes = i64{64} << 10;
/// Pages that are read aside, and for how many pages there may be one.
constexpr i64 kMostAside = 128;
constexpr i64 kPagesForOneAside = 8;
/// Files that a run may still have to open while it reads and when it ends.
constexpr i64 kSpareDescriptors = 64;

i64 round_down(i64 value) { return value / kPageBytes * kPageBytes; }

std::byte* aside_pages() {
  thread_local const PageBytes pages = make_pages(kMostAside * kPageBytes);
  return pages.get();
}

/// A read as whole pages of the file, one after the other. Most go where they belong; a page that belongs there in
/// part, or to two pieces, is read aside and copied.
class PagedRead {
 public:
  explicit PagedRead(i64 offset) : begin_(round_down(offset)), next_(begin_) {}

  /// The bytes of the file from `at` on, which follow those that were added before. False where they lie otherwise in
  /// their pages of memory, or too little is left to go there at once.
  bool add(std::byte* out, i64 at, i64 bytes) {
    if ((static_cast<i64>(reinterpret_cast<std::uintptr_t>(out) % kPageBytes) - at) % kPageBytes != 0) return false;
    const i64 end = at + bytes;
    const i64 first = round_up(at, kPageBytes), last = round_down(end);
    if (at < first && !add_aside(out, at, std::min(first, end))) return false;
    if (first < last) {
      pages_.push_back({out + (first - at), static_cast<std::size_t>(last - first)});
      next_ = last;
    }
    return last < first || last == end || add_aside(out + (last - at), last, end);
  }

  bool is_worth_it() const { return kPagesForOneAside * num_aside_ * kPageBytes <= next_ - begin_; }

  void run(const File& file) const {
    file.preadv_exact(pages_, begin_);
    for (const Part& part : parts_) std::memcpy(part.to, part.from, static_cast<std::size_t>(part.bytes));
  }

 private:
  struct Part {
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    i64 bytes = 0;
  };

  /// [at, end), which is part of a page.
  bool add_aside(std::byte* out, i64 at, i64 end) {
    const i64 page = round_down(at);
    if (page == next_) {
      if (num_aside_ == kMostAside) return false;
      pages_.push_back({aside_pages() + num_aside_++ * kPageBytes, kPageBytes});
      next_ += kPageBytes;
    }
    parts_.push_back({out, aside_pages() + (num_aside_ - 1) * kPageBytes + (at - page), end - at});
    return true;
  }

  i64 begin_;
  /// The position of the next page.
  i64 next_;
  i64 num_aside_ = 0;
  std::vector<iovec> pages_;
  std::vector<Part> parts_;
};

}  // namespace

bool InputFile::reads_past_cache() const {
  // The file is opened for direct reads only now: a run has more important uses for its descriptors, nearly all of
  // which are opened by then.
  std::call_once(opened_, [&] {
    try {
      if (!file_.belongs_to_user()) return;
      // A file system in memory has no device to read from, past the cache or not.
      if (filesystem_of(file_.path()).is_in_memory()) return;
      direct_ = File::open_read_direct(file_.path());
      if (!direct_.is_open()) return;
      if (direct_.is_among_last(kSpareDescriptors)) {
        direct_ = File();
        return;
      }
      const FileIdentity opened = direct_.identity(), first = file_.identity();
      use_direct_ = opened.dev == first.dev && opened.ino == first.ino && opened.size == first.size &&
                    opened.mtime_ns == first.mtime_ns;
    } catch (const Error&) {
      // Then it is read as others are.
    }
  });
  return use_direct_;
}

void InputFile::keep_in_cache() const {
  // After that no descriptor is opened, or the one that was opened is not used.
  std::call_once(opened_, [] {});
  use_direct_ = false;
}

void InputFile::read(std::span<const iovec> pieces, i64 offset) const {
  i64 bytes = 0;
  for (const iovec& piece : pieces) bytes += static_cast<i64>(piece.iov_len);
  if (bytes >= kLeastBytes && reads_past_cache() && !is_cached(offset, bytes) &&
      try_read_past_cache(pieces, offset, bytes))
    return;
  file_.preadv_exact(pieces, offset);
}

bool InputFile::is_cached(i64 offset, i64 bytes) const { return 2 * file_.cached_bytes(offset, bytes) >= bytes; }

bool InputFile::try_read_past_cache(std::span<const iovec> pieces, i64 offset, i64 bytes) const {
  // The last page of most files is none of the disk's.
  const i64 end = std::min(offset + bytes, round_down(file_.size()));
  PagedRead read(offset);
  std::vector<iovec> rest;
  i64 at = offset;
  for (const iovec& piece : pieces) {
    const auto count = static_cast<i64>(piece.iov_len);
    const i64 now = std::clamp(end - at, i64{0}, count);
    auto* const out = static_cast<std::byte*>(piece.iov_base);
    if (now > 0 && !read.add(out, at, now)) return false;
    if (now < count) rest.push_back({out + now, static_cast<std::size_t>(count - now)});
    at += count;
  }
  if (!read.is_worth_it()) return false;
  try {
    read.run(direct_);
  } catch (const Error&) {
    // A filesystem may take the flag and refuse the read. Where it is the disk that fails, the other way says so.
    use_direct_ = false;
    return false;
  }
  if (!rest.empty()) file_.preadv_exact(rest, std::max(end, offset));
  return true;
}

}  // namespace glu_ckpt
