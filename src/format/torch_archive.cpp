#include "format/torch_archive.hpp"

#include <algorithm>
#include <cstring>

#include "core/crc32.hpp"
#include "core/fail.hpp"

namespace glu_ckpt {

i64 PiecewiseCrc::add(i64 offset, std::span<const std::byte> bytes) {
  return bytes.empty() ? 0 : add_sum(offset, static_cast<i64>(bytes.size()), crc32_of(bytes));
}

i64 PiecewiseCrc::add_sum(i64 offset, i64 bytes, u32 crc) {
  const Part part{bytes, crc};
  const std::lock_guard lock(mutex_);
  auto [at, added] = parts_.try_emplace(offset, part);
  if (!added) at->second.bytes = -1;  // written twice: finish() says so
  if (!added) return 0;
  // Neighbours are joined, so that what is kept stays small.
  if (at != parts_.begin()) at = join(std::prev(at), at);
  if (std::next(at) != parts_.end()) at = join(at, std::next(at));
  return at->second.bytes;
}

std::map<i64, PiecewiseCrc::Part>::iterator PiecewiseCrc::join(std::map<i64, Part>::iterator a,
                                                               std::map<i64, Part>::iterator b) {
  if (a->first + a->second.bytes != b->first || a->second.bytes < 0 || b->second.bytes < 0) return b;
  a->second = {a->second.bytes + b->second.bytes, crc32_join(a->second.crc, b->second.crc, b->second.bytes)};
  parts_.erase(b);
  return a;
}

void PiecewiseCrc::export_to(std::vector<std::byte>& out, u64 number) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [offset, part] : parts_) {
    const CrcPiece piece{number, offset, part.bytes, part.crc};
    const auto bytes = std::as_bytes(std::span(&piece, 1));
    out.insert(out.end(), bytes.begin(), bytes.end());
  }
}

std::vector<CrcPiece> read_crc_pieces(std::span<const std::byte> exported) {
  if (exported.size() % sizeof(CrcPiece) != 0)
    fail(ErrorCode::Io, {}, "another process of the run sent {} bytes of checksums, which is no whole number of them",
         exported.size());
  std::vector<CrcPiece> pieces(exported.size() / sizeof(CrcPiece));
  if (!pieces.empty()) std::memcpy(pieces.data(), exported.data(), exported.size());
  return pieces;
}

u32 PiecewiseCrc::finish(i64 total, const std::string& what) const {
  if (total == 0 && parts_.empty()) return 0;
  // Bytes that came exactly once have all been joined.
  const bool whole = parts_.size() == 1 && parts_.begin()->first == 0 && parts_.begin()->second.bytes == total;
  if (whole) return parts_.begin()->second.crc;
  fail(ErrorCode::Io, {{}, what}, "'{}': its {} bytes were not each written exactly once", what, total);
}

TorchArchive::TorchArchive(const std::string& prefix, std::string pickle, const std::vector<i64>& storage_bytes,
                           std::vector<TextRecord> more)
    : layout_(prefix) {
  // There is no .format_version, so no reader computes positions instead of looking them up.
  add_text("data.pkl", std::move(pickle));
  add_text("byteorder", "little");
  for (std::size_t i = 0; i < storage_bytes.size(); ++i)
    storages_.push_back(layout_.add(fmt::format("data/{}", i), storage_bytes[i]));
  add_text("version", "3\n");
  for (TextRecord& record : more) {
    more_.push_back(layout_.size());
    add_text(std::move(record.name), std::move(record.text));
  }
}

void TorchArchive::add_text(std::string name, std::string text) {
  const std::size_t record = layout_.add(name, static_cast<i64>(text.size()));
  texts_.emplace(record, std::move(text));
}

void TorchArchive::replace(std::size_t more, std::string text) {
  std::string& old = texts_.at(more_.at(more));
  if (old.size() != text.size())
    fail(ErrorCode::RecordInvalid, {}, "the final record has {} bytes; {} were kept free for it", text.size(),
         old.size());
  old = std::move(text);
}

i64 TorchArchive::write_rest(OutputFile& file, i64 base, std::span<const u32> crcs) const {
  std::vector<u32> all(layout_.size());
  for (const auto& [record, text] : texts_) all[record] = crc32_of(std::as_bytes(std::span(text)));
  for (std::size_t i = 0; i < storages_.size(); ++i) all[storages_[i]] = crcs[i];
  i64 written = 0;
  // The bytes between two storages go out in one write.
  std::string pending;
  i64 at = 0;
  const auto flush = [&] {
    file.write(std::as_bytes(std::span(pending)), base + at);
    written += static_cast<i64>(pending.size());
    pending.clear();
  };
  for (std::size_t record = 0; record < layout_.size(); ++record) {
    if (pending.empty()) at = layout_.header_offset(record);
    pending += layout_.header(record);
    if (const auto text = texts_.find(record); text != texts_.end()) {
      pending += text->second;
    } else if (layout_.data_bytes(record) > 0) {
      flush();
      at = layout_.descriptor_offset(record);
    }
    pending += layout_.descriptor(record, all[record]);
  }
  pending += layout_.directory(all);
  flush();
  return written;
}

std::string print_object_zip(const std::string& pickle) {
  const std::pair<std::string_view, std::string> records[] = {
      {"data.pkl", pickle}, {"byteorder", "little"}, {"version", "3\n"}};
  ZipLayout layout("archive");
  for (const auto& [name, text] : records) layout.add(name, static_cast<i64>(text.size()));
  std::string zip;
  std::vector<u32> crcs;
  for (std::size_t i = 0; i < std::size(records); ++i) {
    crcs.push_back(crc32_of(std::as_bytes(std::span(records[i].second))));
    zip += layout.header(i) + records[i].second + layout.descriptor(i, crcs[i]);
  }
  return zip + layout.directory(crcs);
}

std::string archive_prefix(const std::string& file_name) {
  const std::string stem = file_name.substr(0, file_name.rfind('.'));
  const bool ascii = std::ranges::all_of(stem, [](char c) { return c > ' ' && c < 0x7F && c != '/'; });
  return ascii && !stem.empty() ? stem : "archive";
}

}  // namespace glu_ckpt
