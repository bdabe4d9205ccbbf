#include "io/journal.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "core/fail.hpp"
#include "core/hash.hpp"

namespace glu_ckpt {
namespace {

constexpr std::string_view kMagic = "GCJ1";
constexpr std::size_t kFrameBytes = 16;
/// Entries are hundreds of bytes, headers some thousands; more is damage.
constexpr std::size_t kMaxContentBytes = std::size_t{64} << 20;

std::vector<std::byte> framed(std::span<const std::byte> content, i64 offset) {
  if (content.size() > kMaxContentBytes)
    fail(ErrorCode::Io, {}, "a journal's record of {} bytes; at most {} are written", content.size(), kMaxContentBytes);
  const auto bytes = static_cast<u32>(content.size());
  std::vector<std::byte> record(kFrameBytes + content.size());
  std::memcpy(record.data(), kMagic.data(), kMagic.size());
  std::memcpy(record.data() + 4, &bytes, sizeof bytes);
  std::ranges::copy(content, record.begin() + kFrameBytes);
  // The checksum stands between what it covers: it is taken as if its own place were zeros.
  const u64 check = hash128(record, static_cast<u64>(offset)).low;
  std::memcpy(record.data() + 8, &check, sizeof check);
  return record;
}

/// Returns true where a file that begins so can be a journal, whole or with zeros for what was not written.
bool begins_as_journal(std::span<const std::byte> first) {
  const auto is_magic = [&](std::size_t i) { return first[i] == static_cast<std::byte>(kMagic[i]); };
  std::size_t same = 0;
  while (same < first.size() && is_magic(same)) ++same;
  return std::ranges::all_of(first.subspan(same), [](std::byte b) { return b == std::byte{0}; });
}

}  // namespace

Journal::Journal(File file) : file_(std::move(file)) { read(true); }

Journal Journal::read_at(const std::filesystem::path& path) { return {File::open_read(path), ReadOnly{}}; }

void Journal::read(bool trims) {
  const i64 bytes = file_.size();
  std::array<std::byte, kMagic.size()> first{};
  const auto there = std::span(first).first(static_cast<std::size_t>(std::min(bytes, static_cast<i64>(kMagic.size()))));
  file_.pread_exact(there, 0);
  if (!begins_as_journal(there))
    fail(ErrorCode::OutputExists, {file_.path().string(), {}},
         "{}: is not a journal of this program; remove its directory and run again", file_.path().string());
  while (const auto content = read_record(end_, bytes)) {
    if (!header_)
      header_.emplace(reinterpret_cast<const char*>(content->data()), content->size());
    else
      entries_.push_back(*content);
    end_ += static_cast<i64>(kFrameBytes + content->size());
  }
  // Records of an earlier run behind a hole must not follow those of this one.
  if (trims && header_ && end_ < bytes) file_.set_size(end_);
}

/// Returns nothing where no whole record lies at `offset` of a file that ends at `end`.
std::optional<std::vector<std::byte>> Journal::read_record(i64 offset, i64 end) const {
  if (end - offset < static_cast<i64>(kFrameBytes)) return {};
  std::array<std::byte, kFrameBytes> frame{};
  file_.pread_exact(frame, offset);
  u32 bytes = 0;
  std::memcpy(&bytes, frame.data() + 4, sizeof bytes);
  if (std::memcmp(frame.data(), kMagic.data(), kMagic.size()) != 0 || bytes > kMaxContentBytes) return {};
  if (end - offset - static_cast<i64>(kFrameBytes) < i64{bytes}) return {};
  std::vector<std::byte> content(bytes);
  file_.pread_exact(content, offset + static_cast<i64>(kFrameBytes));
  const std::vector<std::byte> expected = framed(content, offset);
  if (!std::ranges::equal(std::span(expected).first(kFrameBytes), frame)) return {};
  return content;
}

void Journal::begin(std::string_view header) {
  const std::lock_guard lock(mutex_);
  file_.set_size(0);
  const std::vector<std::byte> record = framed(std::as_bytes(std::span(header)), 0);
  file_.pwrite_exact(record, 0);
  file_.sync();
  end_ = static_cast<i64>(record.size());
  header_ = header;
  entries_.clear();
}

void Journal::append(std::span<const std::byte> entry) {
  const std::lock_guard lock(mutex_);
  const std::vector<std::byte> record = framed(entry, end_);
  file_.pwrite_exact(record, end_);
  end_ += static_cast<i64>(record.size());
}

void Journal::take_over(const Journal& other) {
  for (const std::vector<std::byte>& entry : other.entries_) {
    append(entry);
    entries_.push_back(entry);
  }
}

}  // namespace glu_ckpt
