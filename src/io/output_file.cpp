#include "io/output_file.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>

#include "core/fail.hpp"
#include "core/checked_math.hpp"
#include "io/page_bytes.hpp"

namespace glu_ckpt {
namespace fs = std::filesystem;
namespace {

/// A write past the cache waits for the disk: that of fewer bytes costs more than the copy it saves.
constexpr std::size_t kMinDirectBytes = std::size_t{64} << 10;
/// Written at once, it is reserved first where the file as a whole is not.
constexpr i64 kReservedBytes = i64{1} << 20;
constexpr i64 kSumBytes = sizeof(BlockSum);
/// Sums are read, and blocks read back, by this many bytes.
constexpr i64 kPieceBytes = i64{1} << 20;

/// Moved to a page's start at once, of memory that lies elsewhere in its page.
constexpr i64 kMovedBytes = i64{2} << 20;

/// One buffer for each thread that writes such memory, as long as the thread runs.
const PageBytes& moved_pages() {
  thread_local const PageBytes pages = make_pages(kMovedBytes);
  return pages;
}

fs::path with_suffix(fs::path path, const char* suffix) { return path += suffix; }
fs::path partial_of(const fs::path& path) { return with_suffix(path, ".partial"); }
fs::path sums_of(const fs::path& path) { return with_suffix(path, ".sums"); }

i64 page_phase(const void* address) { return static_cast<i64>(reinterpret_cast<std::uintptr_t>(address) % kPageBytes); }

std::span<const std::byte> part_of(std::span<const std::byte> bytes, i64 begin, i64 end) {
  return bytes.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
}

}  // namespace

OutputFile::OutputFile(const fs::path& path, i64 bytes, StagedMode mode, Space space, PageSpool* spool)
    : path_(path), bytes_(bytes), space_(space), spool_(spool) {
  open(mode);
  if (mode == StagedMode::Join) {
    if (file_.size() != bytes_)
      fail(ErrorCode::Io, {path_.string(), {}}, "{}: has {} bytes where {} were reserved", file_.path().string(),
           file_.size(), bytes_);
  } else {
    if (file_.size() > bytes_)
      fail(ErrorCode::ResumeMismatch, {path_.string(), {}},
           "{}: has {} bytes, but {} are to be written: the earlier run wrote something else; remove it and run again",
           file_.path().string(), file_.size(), bytes_);
    if (space_ == Space::All)
      file_.reserve(bytes_);
    else
      file_.set_size(bytes_);
  }
  direct_ = File::open_direct(file_.path());
  use_direct_ = direct_.is_open();
  open_sums(mode);
}

void OutputFile::open(StagedMode mode) {
  const fs::path partial = partial_of(path_);
  if (mode == StagedMode::Create)
    file_ = File::create(partial);
  else if (mode == StagedMode::Join || path_exists(partial))
    file_ = File::open_write(partial);
  else
    file_ = path_exists(path_) ? File::open_write(path_) : File::create(partial);
  if (mode == StagedMode::Resume) forget_cache();
}

/// What the earlier run wrote is to be read from the disk: where writing out failed, the page cache still has bytes
/// that the disk has not, and takes them for clean.
void OutputFile::forget_cache() const {
  try {
    file_.sync();
  } catch (const Error&) {
    // It is the earlier run's failure; what is missing shows when it is read.
  }
  file_.drop_cache();
}

void OutputFile::open_sums(StagedMode mode) {
  if (chained_blocks(bytes_) == 0 || space_ == Space::AsWritten) return;
  const fs::path path = sums_of(path_);
  if (mode == StagedMode::Join) {
    // Gone where the process that made it could not write it.
    if (!path_exists(path)) return;
    sums_ = File::open_write(path);
  } else {
    // What a run that was stopped left is older than a crash may have made the file.
    remove_tree(path);
    sums_ = File::create(path);
  }
  use_sums_ = true;
}

std::vector<fs::path> OutputFile::names() const { return {path_, partial_of(path_), sums_of(path_)}; }

void OutputFile::write(std::span<const std::byte> from, i64 offset) {
  add_written(from, offset);
  const auto count = static_cast<i64>(from.size());
  if (space_ == Space::AsWritten && count >= kReservedBytes) file_.reserve_part(offset, count);
  // Pages that the range fills: nobody else's bytes are in them, so that no page is written both ways.
  const i64 begin = round_up(offset, kPageBytes) - offset;
  const i64 end = (offset + count) / kPageBytes * kPageBytes - offset;
  const bool few_pages = begin == 0 && end == count && from.size() < kMinDirectBytes;
  if (few_pages && spool_ != nullptr && spool_->try_put(from, file_, offset)) return;
  if (!use_direct_ || from.size() < kMinDirectBytes) return write_buffered(from, offset);
  write_buffered(part_of(from, 0, begin), offset);
  if (page_phase(from.data()) == offset % kPageBytes)
    write_direct(part_of(from, begin, end), offset + begin);
  else
    write_moved(part_of(from, begin, end), offset + begin);
  write_buffered(part_of(from, end, count), offset + end);
}

/// The page cache would copy it as well, and then have its pages to find, to mark and to write.
void OutputFile::write_moved(std::span<const std::byte> from, i64 offset) {
  const PageBytes& pages = moved_pages();
  const auto count = static_cast<i64>(from.size());
  for (i64 done = 0; done < count; done += kMovedBytes) {
    const auto part = part_of(from, done, std::min(done + kMovedBytes, count));
    std::memcpy(pages.get(), part.data(), part.size());
    write_direct({pages.get(), part.size()}, offset + done);
  }
}

void OutputFile::write_direct(std::span<const std::byte> from, i64 offset) {
  try {
    direct_.pwrite_exact(from, offset);
  } catch (const Error& error) {
    // A filesystem may take the flag and refuse the write. Where it is the disk that fails, the flush says so.
    if (error.code() != ErrorCode::Io) throw;
    use_direct_ = false;
    write_buffered(from, offset);
  }
}

void OutputFile::write_buffered(std::span<const std::byte> from, i64 offset) {
  if (from.empty()) return;
  file_.pwrite_exact(from, offset);
  // Not an edge: its page would be under way to the disk when its other half comes.
  if (from.size() >= kMinDirectBytes) file_.start_writeback(offset, static_cast<i64>(from.size()));
}

void OutputFile::add_written(std::span<const std::byte> from, i64 offset) {
  if (!use_sums_) return;
  const i64 begin = round_up(offset, kHashBlockBytes);
  const i64 end = std::min((offset + static_cast<i64>(from.size())) / kHashBlockBytes, chained_blocks(bytes_));
  const i64 first = begin / kHashBlockBytes;
  if (end <= first) return;
  const auto count = static_cast<std::size_t>(end - first);
  const auto sums = std::make_unique_for_overwrite<BlockSum[]>(count);
  sum_blocks(from.subspan(static_cast<std::size_t>(begin - offset)), {sums.get(), count});
  try {
    sums_.pwrite_exact(std::as_bytes(std::span(sums.get(), count)), first * kSumBytes);
  } catch (const Error&) {
    // A full disk need not stop the run here: the file's own space is reserved, and it can be read instead.
    drop_sums();
  }
}

void OutputFile::drop_sums() {
  use_sums_ = false;
  remove_tree(sums_of(path_));
}

void OutputFile::flush() {
  file_.sync();
  if (!use_sums_) return;
  try {
    sums_.sync();
  } catch (const Error&) {
    drop_sums();
  }
}

void OutputFile::see_others() {
  flush();
  file_.drop_cache();
  // Another process that could not write all of its sums has taken the file away; what it holds may end in half of one.
  if (!path_exists(sums_of(path_))) use_sums_ = false;
  if (use_sums_) sums_.drop_cache();
}

void OutputFile::publish() {
  if (space_ == Space::All) hash_ = compute_hash();
  file_.sync();
  direct_ = File();
  if (file_.path() != path_) rename_path(file_.path(), path_);
  if (!sums_.is_open()) return;
  // Not as while it is written: what stays would be part of the output.
  if (const int error = remove_tree(sums_of(path_)); error != 0) fail_errno(error, "remove", sums_of(path_));
  use_sums_ = false;
  sums_ = File();
}

Hash128 OutputFile::compute_hash() const {
  const i64 blocks = chained_blocks(bytes_);
  std::vector<BlockSum> sums(static_cast<std::size_t>(std::min(blocks, kPieceBytes / kSumBytes)));
  BlockChain chain;
  for (i64 first = 0; first < blocks;) {
    const auto piece = std::span(sums).first(std::min(sums.size(), static_cast<std::size_t>(blocks - first)));
    read_sums(piece, first);
    read_back(piece, first);
    chain.add(piece);
    first += std::ssize(piece);
  }
  std::vector<std::byte> tail(static_cast<std::size_t>(hash_tail_bytes(bytes_)));
  read(tail, bytes_ - std::ssize(tail));
  return chain.finish(bytes_, tail);
}

/// Zeros past the end of what was ever written.
void OutputFile::read_sums(std::span<BlockSum> sums, i64 first) const {
  std::ranges::fill(sums, BlockSum{});
  if (!use_sums_) return;
  const i64 there = std::clamp(sums_.size() / kSumBytes - first, i64{0}, std::ssize(sums));
  sums_.pread_exact(std::as_writable_bytes(sums.first(static_cast<std::size_t>(there))), first * kSumBytes);
}

/// The sums that are missing, neighbours by one read.
void OutputFile::read_back(std::span<BlockSum> sums, i64 first) const {
  const auto missing = [](const BlockSum& sum) { return !sum.is_known(); };
  std::vector<std::byte> bytes;
  for (auto at = std::ranges::find_if(sums, missing); at != sums.end(); at = std::find_if(at, sums.end(), missing)) {
    const auto limit = at + std::min<std::ptrdiff_t>(sums.end() - at, kPieceBytes / kHashBlockBytes);
    const auto end = std::find_if_not(at, limit, missing);
    bytes.resize(static_cast<std::size_t>((end - at) * kHashBlockBytes));
    read(bytes, (first + (at - sums.begin())) * kHashBlockBytes);
    sum_blocks(bytes, {at, end});
    at = end;
  }
}

}  // namespace glu_ckpt
