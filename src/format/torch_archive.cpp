#include "format/torch_archive.hpp"

#include <algorithm>

#include "core/crc32.hpp"
#include "core/fail.hpp"

namespace glu_ckpt {

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
