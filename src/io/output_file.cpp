#include "io/output_file.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>

#include "core/checked_math.hpp"
#include "core/fail.hpp"
#include "io/file_names.hpp"
#include "io/page_bytes.hpp"

namespace glu_ckpt {
namespace fs = std::filesystem;
namespace {

/// A write past the cache waits for the disk: that of fewer bytes costs more than the copy it saves.
constexpr std::size_t kMinDirectBytes = std::size_t{64} << 10;
/// Written at once, it is reserved first where the file as a whole is not.
constexpr i64 kReservedBytes = i64{1} << 20;

/// Moved to a page's start at once, of memory that lies elsewhere in its page.
constexpr i64 kMovedBytes = i64{2} << 20;

/// One buffer for each thread that writes such memory, as long as the thread runs.
const PageBytes& moved_pages() {
  thread_local const PageBytes pages = make_pages(kMovedBytes);
  return pages;
}

i64 page_phase(const void* address) { return static_cast<i64>(reinterpret_cast<std::uintptr_t>(address) % kPageBytes); }

std::span<const std::byte> part_of(std::span<const std::byte> bytes, i64 begin, i64 end) {
  return bytes.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
}

}  // namespace

OutputFile::OutputFile(const fs::path& path, StagedMode mode, const OutputFileOptions& options)
    : path_(path), options_(options), header_hash_(hash128({}, 0)) {
  open(mode);
  if (mode == StagedMode::Join) {
    if (file_.size() != bytes())
      fail(ErrorCode::Io, {path_.string(), {}}, "{}: has {} bytes where {} were reserved", file_.path().string(),
           file_.size(), bytes());
  } else {
    if (file_.size() > bytes())
      fail(ErrorCode::ResumeMismatch, {path_.string(), {}},
           "{}: has {} bytes, but {} are to be written: the earlier run wrote something else; remove it and run again",
           file_.path().string(), file_.size(), bytes());
    if (options_.space == Space::All)
      file_.reserve(bytes());
    else
      file_.set_size(bytes());
  }
  // A file system in memory has no disk to write to past the cache, though some take the flag.
  if (options_.space != Space::Never) direct_ = File::open_direct(file_.path());
  use_direct_ = direct_.is_open();
  if (options_.hash_memory != nullptr)
    hasher_ = std::make_unique<DataHasher>(bytes() - header_bytes(), *options_.hash_memory);
}

void OutputFile::open(StagedMode mode) {
  const fs::path partial = partial_of(path_);
  if (mode == StagedMode::Create)
    file_ = File::create(partial);
  else if (mode == StagedMode::Part || mode == StagedMode::Lead)
    open_shared(partial);
  else if (mode == StagedMode::Join || path_exists(partial))
    file_ = File::open_write(partial);
  else
    file_ = path_exists(path_) ? File::open_write(path_) : File::create(partial);
  if (mode == StagedMode::Resume || mode == StagedMode::Part) forget_cache();
}

/// Whoever comes first makes it. It has its name already where the run that was to commit it was stopped.
void OutputFile::open_shared(const fs::path& partial) {
  if (path_exists(path_))
    file_ = File::open_write(path_);
  else if (file_ = File::try_create(partial); !file_.is_open())
    file_ = File::open_write(partial);
}

/// The earlier run's bytes are to be read from the disk: where writing out failed, the page cache still has bytes
/// that the disk has not, and takes them for clean.
void OutputFile::forget_cache() const {
  try {
    file_.sync();
  } catch (const Error&) {
    // It is the earlier run's failure; what is missing shows when it is read.
  }
  file_.drop_cache();
}

std::vector<fs::path> OutputFile::names() const { return {path_, partial_of(path_)}; }

void OutputFile::write_header(std::span<const std::byte> header) {
  header_hash_ = hash128(header, 0);
  put(header, 0);
}

void OutputFile::write(std::span<const std::byte> from, i64 offset) {
  add_written(from, offset);
  put(from, offset);
}

void OutputFile::add_written(std::span<const std::byte> from, i64 offset) {
  if (hasher_) hasher_->add(offset - header_bytes(), from);
}

void OutputFile::put(std::span<const std::byte> from, i64 offset) {
  const auto count = static_cast<i64>(from.size());
  if (options_.space == Space::AsWritten && count >= kReservedBytes) file_.reserve_part(offset, count);
  // Pages that the range fills: nobody else's bytes are in them, so that no page is written both ways.
  const i64 begin = round_up(offset, kPageBytes) - offset;
  const i64 end = (offset + count) / kPageBytes * kPageBytes - offset;
  const bool few_pages = begin == 0 && end == count && from.size() < kMinDirectBytes;
  if (few_pages && options_.spool != nullptr && options_.spool->try_put(from, file_, offset)) return;
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
  // Where writes are copies, threads that wait in the kernel for the file's lock spin beside the one that copies.
  std::unique_lock<std::mutex> turn(turn_, std::defer_lock);
  if (options_.space == Space::Never) turn.lock();
  file_.pwrite_exact(from, offset);
  // Edges are left out: their page would be under way to the disk when its other half comes.
  if (from.size() >= kMinDirectBytes) file_.start_writeback(offset, static_cast<i64>(from.size()));
}

void OutputFile::flush() { file_.sync(); }

void OutputFile::export_hashes(ByteWriter& out) const {
  if (hasher_) hasher_->export_to(out);
}

void OutputFile::import_hashes(ByteReader& in) {
  if (hasher_) hasher_->import_from(in);
}

void OutputFile::see_others() {
  flush();
  file_.drop_cache();
}

void OutputFile::publish() {
  if (hasher_)
    data_hash_ = hasher_->finish([this](std::span<std::byte> out, i64 offset) { read(out, header_bytes() + offset); });
  file_.sync();
  direct_ = File();
  if (file_.path() != path_) replace_own(file_.path(), path_, Own::InStaging);
}

}  // namespace glu_ckpt
