#include "format/torch_zip.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <map>
#include <optional>

#include "format/zip_layout.hpp"
#include "glu_ckpt/error.hpp"
#include "support/golden_zip.hpp"
#include "support/slug_of.hpp"

namespace glu_ckpt {
namespace {

struct Read {
  i64 offset;
  i64 bytes;
};

/// Bytes at some positions of a zip, zeros between them. Remembers what was read.
class SparseZip {
 public:
  explicit SparseZip(std::string whole) : bytes_(std::ssize(whole)) { pieces_[0] = std::move(whole); }
  SparseZip(std::map<i64, std::string> pieces, i64 bytes) : pieces_(std::move(pieces)), bytes_(bytes) {}

  ZipDirectory directory() {
    return read_zip_directory([this](std::span<std::byte> out, i64 offset) { read(out, offset); }, bytes_, "some.pt");
  }
  const std::vector<Read>& reads() const { return reads_; }

 private:
  void read(std::span<std::byte> out, i64 offset) {
    const i64 end = offset + std::ssize(out);
    ASSERT_GE(offset, 0);
    ASSERT_LE(end, bytes_);
    reads_.push_back({offset, std::ssize(out)});
    std::fill(out.begin(), out.end(), std::byte{0});
    for (const auto& [at, piece] : pieces_) {
      const i64 first = std::max(at, offset);
      const i64 last = std::min(at + std::ssize(piece), end);
      if (first < last) std::memcpy(&out[first - offset], &piece[first - at], last - first);
    }
  }

  std::map<i64, std::string> pieces_;
  i64 bytes_;
  std::vector<Read> reads_;
};

std::string slug_for(const std::string& zip) {
  return slug_of([&] { SparseZip(zip).directory(); });
}

std::string message_for(const std::string& zip) {
  try {
    SparseZip(zip).directory();
  } catch (const Error& error) {
    EXPECT_EQ(error.file(), "some.pt");
    return error.what();
  }
  return {};
}

/// Name, offset, bytes and crc.
std::string text_of(const ZipRecord& record) {
  return fmt::format("{} {} {} {:08x}", record.name, record.offset, record.bytes, record.crc);
}

std::vector<std::string> texts_of(const ZipDirectory& directory) {
  std::vector<std::string> texts;
  for (const ZipRecord& record : directory.records) texts.push_back(text_of(record));
  return texts;
}

template <typename T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void put16(std::string& out, i64 value) { put(out, static_cast<std::uint16_t>(value)); }
void put32(std::string& out, i64 value) { put(out, static_cast<u32>(value)); }

/// `zip` with a number of `width` bytes written over what stands at `position`.
std::string with(std::string zip, std::size_t position, std::size_t width, u64 value) {
  EXPECT_LE(position + width, zip.size());
  std::memcpy(&zip[position], &value, width);
  return zip;
}

std::string with_text(std::string zip, std::size_t position, std::string_view text) {
  return zip.replace(position, text.size(), text);
}

std::string zip64_field(const std::vector<i64>& values) {
  std::string field;
  put16(field, 1);
  put16(field, std::ssize(values) * 8);
  for (const i64 value : values) put(field, value);
  return field;
}

/// An entry of a plain zip, whose two headers may say something else than what is so.
struct Part {
  std::string name;
  std::string data;
  i64 flags = 0;
  std::optional<u32> local_crc = {};
  std::optional<u32> local_stored = {};
  std::optional<u32> local_bytes = {};
  std::string local_extra = {};
  std::optional<u32> central_stored = {};
  std::optional<u32> central_bytes = {};
  std::optional<u32> central_offset = {};
  std::string central_extra = {};
};

/// What a crc of test data is does not matter to the directory.
u32 crc_of(const Part& part) { return 0x01020304 + static_cast<u32>(part.data.size()); }

std::string local_header(const Part& part) {
  std::string text = "PK\x03\x04";
  put16(text, 20);
  put16(text, part.flags);
  put16(text, 0);
  put32(text, 0x12345678);  // time and date
  put32(text, part.local_crc.value_or(crc_of(part)));
  put32(text, part.local_stored.value_or(static_cast<u32>(part.data.size())));
  put32(text, part.local_bytes.value_or(static_cast<u32>(part.data.size())));
  put16(text, std::ssize(part.name));
  put16(text, std::ssize(part.local_extra));
  return text + part.name + part.local_extra;
}

std::string central_header(const Part& part, i64 offset) {
  std::string text = "PK\x01\x02";
  put16(text, 0x0314);
  put16(text, 20);
  put16(text, part.flags);
  put16(text, 0);
  put32(text, 0x12345678);
  put32(text, crc_of(part));
  put32(text, part.central_stored.value_or(static_cast<u32>(part.data.size())));
  put32(text, part.central_bytes.value_or(static_cast<u32>(part.data.size())));
  put16(text, std::ssize(part.name));
  put16(text, std::ssize(part.central_extra));
  put16(text, 7);
  put16(text, 0);
  put16(text, 1);
  put32(text, 0x81A40000);
  put32(text, part.central_offset.value_or(static_cast<u32>(offset)));
  return text + part.name + part.central_extra + "comment";
}

std::string end_record(i64 entries, i64 directory_bytes, i64 directory_offset, const std::string& comment) {
  std::string text = "PK\x05\x06";
  put32(text, 0);
  put16(text, entries);
  put16(text, entries);
  put32(text, directory_bytes);
  put32(text, directory_offset);
  put16(text, std::ssize(comment));
  return text + comment;
}

/// As other writers than PyTorch's write it: no padding, no descriptors, no zip64 end record.
std::string plain_zip(const std::vector<Part>& parts, const std::string& comment = {}) {
  std::string zip;
  std::string directory;
  for (const Part& part : parts) {
    directory += central_header(part, std::ssize(zip));
    zip += local_header(part) + part.data;
  }
  const i64 offset = std::ssize(zip);
  return zip + directory + end_record(std::ssize(parts), std::ssize(directory), offset, comment);
}

std::string slug_of_part(const Part& part) { return slug_for(plain_zip({part})); }

// Of torch214_zip(): data/0 is its fifth record.
constexpr std::size_t kLocal = 598;
constexpr std::size_t kDirectory = 1016;
constexpr std::size_t kSecondEntry = kDirectory + 46 + 16;
constexpr std::size_t kEnd64 = 1479;
constexpr std::size_t kLocator = kEnd64 + 56;
constexpr std::size_t kEnd = kLocator + 20;

TEST(TorchZip, ReadsAZipOfTorch214) {
  SparseZip zip(torch214_zip());
  const ZipDirectory directory = zip.directory();
  EXPECT_EQ(directory.prefix, "archive");
  EXPECT_EQ(texts_of(directory),
            (std::vector<std::string>{"data.pkl 64 157 16a814fd", ".format_version 320 1 83dcefb7",
                                      ".storage_alignment 448 2 e971773f", "byteorder 576 6 19e33d85",
                                      "data/0 704 12 3ae021b3", "version 832 2 55679ed1",
                                      ".data/serialization_id 960 40 2b201e13"}));
}

TEST(TorchZip, ReadsAZipOfTorch113) {
  const ZipDirectory directory = SparseZip(torch113_zip()).directory();
  EXPECT_EQ(texts_of(directory),
            (std::vector<std::string>{"data.pkl 64 157 16a814fd", "data/0 320 12 3ae021b3", "version 448 2 55679ed1"}));
}

TEST(TorchZip, FindsRecordsByName) {
  const ZipDirectory directory = SparseZip(torch214_zip()).directory();
  for (const ZipRecord& record : directory.records) EXPECT_EQ(directory.find(record.name), &record);
  for (const char* name : {"", ".", "data", "data/", "data/00", "data/1", "versio", "versionn", "zzz"})
    EXPECT_EQ(directory.find(name), nullptr) << name;
  EXPECT_EQ(ZipDirectory{}.find("data.pkl"), nullptr);
}

TEST(TorchZip, ReadsPlainZipsOfOtherWriters) {
  const std::string zip = plain_zip({{"x/data.pkl", "abc"}, {"x/data/0", ""}, {"x/version", "3\n"}});
  const ZipDirectory directory = SparseZip(zip).directory();
  EXPECT_EQ(directory.prefix, "x");
  EXPECT_EQ(texts_of(directory),
            (std::vector<std::string>{"data.pkl 40 3 01020307", "data/0 81 0 01020304", "version 120 2 01020306"}));
}

TEST(TorchZip, EntriesOfFoldersAreNoRecords) {
  const std::string zip = plain_zip({{"x/", ""}, {"x/data/", ""}, {"x/data/0", "abc"}});
  EXPECT_EQ(texts_of(SparseZip(zip).directory()), (std::vector<std::string>{"data/0 107 3 01020307"}));
  EXPECT_EQ(slug_for(plain_zip({{"x/", "abc"}})), "zip-directory");
}

TEST(TorchZip, ReadsAZipWithAComment) {
  for (const std::size_t length : {1u, 21u, 22u, 23u, 5000u, 65535u}) {
    std::string comment(length, 'c');
    comment.replace(0, std::min<std::size_t>(4, length), "PK\x05\x06", std::min<std::size_t>(4, length));
    SparseZip zip(plain_zip({{"x/d", "abc"}}, comment));
    EXPECT_EQ(zip.directory().records.size(), 1u) << length;
  }
}

TEST(TorchZip, ReadsASmallZipAtOnce) {
  const auto zip_of = [](i64 bytes) {
    const i64 rest = std::ssize(plain_zip({{"x/d", ""}, {"x/e", "1"}}));
    return plain_zip({{"x/d", std::string(static_cast<std::size_t>(bytes - rest), 'd')}, {"x/e", "1"}});
  };
  for (const i64 bytes : {i64{300}, i64{65536}}) {
    SparseZip zip(zip_of(bytes));
    EXPECT_EQ(zip.directory().records.size(), 2u);
    ASSERT_EQ(zip.reads().size(), 1u);
    EXPECT_EQ(zip.reads()[0].offset, 0);
    EXPECT_EQ(zip.reads()[0].bytes, bytes);
  }
  SparseZip longer(zip_of(65537));
  EXPECT_EQ(longer.directory().records.size(), 2u);
  ASSERT_EQ(longer.reads().size(), 2u) << "the end, with the second header, and the first header";
  EXPECT_EQ(longer.reads()[0].bytes, 4096);
  EXPECT_LT(longer.reads()[1].bytes, 200);
}

TEST(TorchZip, ReadsNoByteTwiceOfALargeDirectory) {
  std::vector<Part> parts;
  parts.reserve(2000);
  for (int i = 0; i < 2000; ++i) parts.push_back({fmt::format("x/{}", i), std::string(i % 7, 'd')});
  for (const std::size_t comment_bytes : {0u, 60000u}) {
    SparseZip zip(plain_zip(parts, std::string(comment_bytes, 'c')));
    const ZipDirectory directory = zip.directory();
    ASSERT_EQ(directory.records.size(), 2000u);
    for (int i = 0; i < 2000; ++i) {
      const ZipRecord* record = directory.find(std::to_string(i));
      ASSERT_NE(record, nullptr);
      EXPECT_EQ(record->bytes, i % 7);
    }
    i64 begin = std::numeric_limits<i64>::max();
    for (const Read& read : zip.reads())
      if (read.bytes > 1000) {
        EXPECT_LE(read.offset + read.bytes, begin);
        begin = read.offset;
      }
  }
}

/// Sizes and offsets of more than 32 bits, as the writer lays them out; no data is there.
TEST(TorchZip, ReadsWideSizesAndOffsets) {
  const std::vector<i64> sizes = {157, 0xFFFFFFFE, 0xFFFFFFFF, 0, 12, 0x1234567890, 0};
  ZipLayout layout("archive");
  std::map<i64, std::string> pieces;
  std::vector<u32> crcs;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    layout.add("data/" + std::to_string(i), sizes[i]);
    pieces[layout.header_offset(i)] = layout.header(i);
    crcs.push_back(sizes[i] > 0 ? 0xABCD0000u + static_cast<u32>(i) : 0);
  }
  pieces[layout.directory_offset()] = layout.directory(crcs);
  SparseZip zip(pieces, layout.total_bytes());
  const ZipDirectory directory = zip.directory();
  ASSERT_EQ(directory.records.size(), sizes.size());
  for (std::size_t i = 0; i < sizes.size(); ++i)
    EXPECT_EQ(text_of(directory.records[i]),
              text_of({"data/" + std::to_string(i), layout.data_offset(i), sizes[i], crcs[i]}));
  EXPECT_EQ(zip.reads().size(), 7u) << "the end, with the last header, and six headers";
}

TEST(TorchZip, ReadsWideValuesThatNeedNotBe) {
  const u32 full = 0xFFFFFFFF;
  Part part{"x/d", "abc"};
  part.local_stored = part.local_bytes = part.central_stored = part.central_bytes = part.central_offset = full;
  part.local_extra = zip64_field({3, 3});
  part.central_extra = zip64_field({3, 3, 0});
  EXPECT_EQ(slug_of_part(part), "none");
  part.local_extra = "FB\x02" + std::string(1, '\0') + "ZZ" + zip64_field({3, 3}) + "\x01";
  EXPECT_EQ(slug_of_part(part), "none") << "after another field, before a byte that begins none";
  part.local_extra = std::string("FB\xE8\x03") + std::string(1000, 'Z') + zip64_field({3, 3});
  EXPECT_EQ(slug_of_part(part), "none");
  EXPECT_EQ(slug_for(plain_zip({part, {"x/e", std::string(70000, 'e')}})), "none") << "not in the tail";
}

struct Case {
  const char* what;
  std::string zip;
};

void expect_all(const std::string& slug, const std::vector<Case>& cases) {
  for (const Case& c : cases) EXPECT_EQ(slug_for(c.zip), slug) << c.what << ": " << message_for(c.zip);
}

TEST(TorchZip, RefusesWhatIsNoZip) {
  expect_all("zip-directory", {
                                  {"nothing", ""},
                                  {"21 bytes", std::string(21, 'P')},
                                  {"text", std::string(2000, 'x')},
                                  {"long text", std::string(200'000, 'x')},
                                  {"an end record alone", end_record(0, 0, 0, "")},
                                  {"an end record that counts something", end_record(1, 0, 0, "")},
                                  {"a cut comment", plain_zip({{"x/d", "abc"}}, "comment").substr(0, 110)},
                                  {"bytes after the end", torch214_zip() + "x"},
                              });
  EXPECT_NE(message_for("\1\2\3\4").find("some.pt: byte 4: the zip ends here"), std::string::npos)
      << message_for("\1\2\3\4");
}

TEST(TorchZip, RefusesBrokenEndRecords) {
  const std::string zip = torch214_zip();
  const std::string plain = plain_zip({{"x/d", "abc"}});
  const std::size_t plain_end = plain.size() - 22;
  expect_all("zip-directory",
             {
                 {"number of this disk", with(zip, kEnd + 4, 2, 1)},
                 {"number of the directory's disk", with(zip, kEnd + 6, 2, 1)},
                 {"entries of this disk", with(zip, kEnd + 8, 2, 6)},
                 {"fewer entries than the wide count", with(zip, kEnd + 8, 4, 0x00060006)},
                 {"another size than the wide one", with(zip, kEnd + 12, 4, 462)},
                 {"another offset than the wide one", with(zip, kEnd + 16, 4, 1015)},
                 {"no locator", with(zip, kLocator, 4, 0)},
                 {"no locator, saturated", with(with(zip, kLocator, 4, 0), kEnd + 12, 4, 0xFFFFFFFF)},
                 {"disk of the wide record", with(zip, kLocator + 4, 4, 1)},
                 {"place of the wide record", with(zip, kLocator + 8, 8, kEnd64 - 1)},
                 {"a place that is no place", with(zip, kLocator + 8, 8, ~u64{0})},
                 {"two disks", with(zip, kLocator + 16, 4, 2)},
                 {"no wide record", with(zip, kEnd64, 4, 0)},
                 {"length of the wide record", with(zip, kEnd64 + 4, 8, 45)},
                 {"this disk, wide", with(zip, kEnd64 + 16, 4, 1)},
                 {"the directory's disk, wide", with(zip, kEnd64 + 20, 4, 1)},
                 {"entries of this disk, wide", with(zip, kEnd64 + 24, 8, 6)},
                 {"negative size", with(with(zip, kEnd + 12, 4, 0xFFFFFFFF), kEnd64 + 40, 8, u64{1} << 63)},
                 {"size of 2^63-1", with(with(zip, kEnd + 12, 4, 0xFFFFFFFF), kEnd64 + 40, 8, ~u64{0} >> 1)},
                 {"offset of 2^63-1", with(with(zip, kEnd + 16, 4, 0xFFFFFFFF), kEnd64 + 48, 8, ~u64{0} >> 1)},
                 {"a locator first of all", zip.substr(kLocator)},
                 {"saturated count", with(plain, plain_end + 8, 4, 0xFFFFFFFF)},
                 {"saturated size", with(plain, plain_end + 12, 4, 0xFFFFFFFF)},
                 {"saturated offset", with(plain, plain_end + 16, 4, 0xFFFFFFFF)},
                 {"bytes before the zip", "x" + plain},
                 {"bytes after the directory", plain.substr(0, plain_end) + "x" + plain.substr(plain_end)},
             });
  EXPECT_NE(message_for(with(zip, kEnd + 4, 2, 1)).find("some.pt: byte 1555: "), std::string::npos);
}

/// The count in both end records.
std::string with_count(const std::string& zip, u64 count) {
  return with(with(with(zip, kEnd + 8, 4, count << 16 | count), kEnd64 + 24, 8, count), kEnd64 + 32, 8, count);
}

TEST(TorchZip, RefusesAnotherNumberOfEntries) {
  EXPECT_EQ(slug_for(with_count(torch214_zip(), 7)), "none");
  for (const u64 count : {0, 1, 6, 8, 10, 11, 65534})
    EXPECT_EQ(slug_for(with_count(torch214_zip(), count)), "zip-directory") << count;
  std::string zip = with(torch214_zip(), kEnd + 8, 4, 0xFFFFFFFF);
  for (const u64 count : {u64{65535}, u64{1} << 40, (u64{1} << 63) - 1, u64{1} << 63, ~u64{0}})
    EXPECT_EQ(slug_for(with(with(zip, kEnd64 + 24, 8, count), kEnd64 + 32, 8, count)), "zip-directory") << count;
}

/// The zip is as long as it says, but nobody could read such a directory.
TEST(TorchZip, RefusesAHugeDirectory) {
  const i64 directory_bytes = i64{1} << 50;
  std::string tail = "PK\x06\x06";
  for (const i64 value : {i64{44}, i64{0}, i64{0}}) put(tail, value);
  tail.resize(24, '\0');
  for (const i64 value : {i64{1} << 40, i64{1} << 40, directory_bytes, i64{0}}) put(tail, value);
  tail += std::string("PK\x06\x07\0\0\0\0", 8);
  put(tail, directory_bytes);
  put32(tail, 1);
  tail += end_record(0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, "");
  SparseZip zip({{directory_bytes, tail}}, directory_bytes + std::ssize(tail));
  EXPECT_EQ(slug_of([&] { zip.directory(); }), "zip-directory");
  EXPECT_EQ(zip.reads().size(), 1u);
}

TEST(TorchZip, RefusesBrokenEntries) {
  const std::string zip = torch214_zip();
  const std::size_t at = kSecondEntry;
  expect_all("zip-directory",
             {
                 {"signature", with(zip, at, 4, 0)},
                 {"other stored bytes", with(zip, at + 20, 4, 2)},
                 {"other bytes", with(zip, at + 24, 4, 2)},
                 {"name that is too long", with(zip, at + 28, 2, 24)},
                 {"name beyond the directory", with(zip, at + 28, 2, 60000)},
                 {"extra fields beyond the directory", with(zip, at + 30, 2, 60000)},
                 {"comment beyond the directory", with(zip, at + 32, 2, 60000)},
                 {"disk", with(zip, at + 34, 2, 1)},
                 {"saturated size without the wide one", with(zip, at + 24, 4, 0xFFFFFFFF)},
                 {"saturated offset without the wide one", with(zip, at + 42, 4, 0xFFFFFFFF)},
                 {"NUL in the name", with(zip, at + 56, 1, 0)},
                 {"no UTF-8", with(zip, at + 56, 1, 0xFF)},
                 {"other prefix", with_text(zip, at + 46, "arkhive/")},
                 {"shorter prefix", with_text(zip, at + 46, "archiv/e")},
                 {"prefix without a folder", with_text(zip, at + 46, "archive.")},
                 {"first entry without a folder", with_text(zip, kDirectory + 46 + 7, "_")},
                 {"no name", plain_zip({{"", "abc"}})},
                 {"no folder", plain_zip({{"d", "abc"}})},
                 {"folder alone", plain_zip({{"x/", "abc"}})},
                 {"twice", plain_zip({{"x/d", "abc"}, {"x/e", "1"}, {"x/d", "abc"}})},
                 {"one entry too few", plain_zip({{"x/d", "abc"}}).replace(40, 0, central_header({"x/e", ""}, 0))},
             });
  for (const std::size_t field : {28u, 30u, 32u})
    EXPECT_NE(message_for(with(zip, at + field, 2, 60000)).find("byte 1078: the entry ends after"), std::string::npos);
}

TEST(TorchZip, RefusesBrokenWideValues) {
  const u32 full = 0xFFFFFFFF;
  const auto slug_with = [&](const std::string& extra) {
    Part part{"x/d", "abc"};
    part.central_stored = part.central_bytes = part.central_offset = full;
    part.central_extra = extra;
    return slug_of_part(part);
  };
  EXPECT_EQ(slug_with(zip64_field({3, 3, 0})), "none");
  EXPECT_EQ(slug_with(zip64_field({3, 3})), "zip-directory");
  EXPECT_EQ(slug_with(zip64_field({3, 2, 0})), "zip-directory");
  EXPECT_EQ(slug_with(zip64_field({3, 3, 0}) + zip64_field({3, 3, 0})), "zip-directory");
  EXPECT_EQ(slug_with(zip64_field({3, 3, 0}).substr(0, 27)), "zip-directory");
  EXPECT_EQ(slug_with(zip64_field({3, 3, -1})), "zip-directory");
  EXPECT_EQ(slug_with(zip64_field({-1, -1, 0})), "zip-directory");
  EXPECT_EQ(slug_with(zip64_field({3, 3, 1})), "zip-local-header");
  EXPECT_EQ(slug_with(zip64_field({3, 3, std::numeric_limits<i64>::max()})), "zip-local-header");
  EXPECT_EQ(slug_with(zip64_field({std::numeric_limits<i64>::max(), std::numeric_limits<i64>::max(), 0})),
            "zip-overlap");
}

TEST(TorchZip, RefusesCompressedAndEncryptedRecords) {
  const std::string zip = torch214_zip();
  expect_all("zip-compressed", {
                                   {"deflated", with(zip, kSecondEntry + 10, 2, 8)},
                                   {"zstd", with(zip, kSecondEntry + 10, 2, 93)},
                                   {"encrypted", with(zip, kSecondEntry + 8, 2, 0x0809)},
                               });
}

TEST(TorchZip, RefusesLocalHeadersThatSayOtherwise) {
  const std::string zip = torch214_zip();
  const std::size_t entry_offset = kSecondEntry + 42;
  expect_all("zip-local-header",
             {
                 {"signature", with(zip, kLocal, 4, 0)},
                 {"encrypted", with(zip, kLocal + 6, 2, 0x0809)},
                 {"sizes without a descriptor", with(zip, kLocal + 6, 2, 0x0800)},
                 {"method", with(zip, kLocal + 8, 2, 8)},
                 {"crc", with(zip, kLocal + 14, 4, 1)},
                 {"stored bytes", with(zip, kLocal + 18, 4, 11)},
                 {"bytes", with(zip, kLocal + 22, 4, 13)},
                 {"stored bytes without the wide ones", with(zip, kLocal + 18, 4, 0xFFFFFFFF)},
                 {"bytes without the wide ones", with(zip, kLocal + 22, 4, 0xFFFFFFFF)},
                 {"longer name", with(zip, kLocal + 26, 2, 15)},
                 {"shorter name", with(zip, kLocal + 26, 2, 13)},
                 {"other name", with_text(zip, kLocal + 30 + 13, "1")},
                 {"one byte off", with(zip, entry_offset, 4, 236)},
                 {"the header of another", with(zip, entry_offset, 4, 0)},
                 {"in the directory", with(zip, entry_offset, 4, kDirectory)},
                 {"last bytes before the directory", with(zip, entry_offset, 4, kDirectory - 30 - 22)},
                 {"after the zip", with(zip, entry_offset, 4, 0xFFFFFFFE)},
             });
  EXPECT_EQ(slug_for(with(with(zip, kLocal + 18, 4, 12), kLocal + 22, 4, 12)), "none") << "the same sizes";
  EXPECT_EQ(slug_for(with(zip, kLocal + 14, 4, 0x3AE021B3)), "none") << "the same crc";
  EXPECT_NE(message_for(with(zip, kLocal, 4, 0)).find("byte 598: there is no local header"), std::string::npos);
}

TEST(TorchZip, RefusesWideLocalSizesThatSayOtherwise) {
  const u32 full = 0xFFFFFFFF;
  const auto slug_with = [&](const std::string& extra, i64 flags) {
    Part part{"x/d", "abc", flags};
    part.local_stored = part.local_bytes = full;
    part.local_extra = extra;
    return slug_of_part(part);
  };
  EXPECT_EQ(slug_with(zip64_field({3, 3}), 0), "none");
  EXPECT_EQ(slug_with(zip64_field({3, 0}), 8), "none");
  EXPECT_EQ(slug_with(zip64_field({0, 0}), 8), "none");
  EXPECT_EQ(slug_with(zip64_field({3, 0}), 0), "zip-local-header");
  EXPECT_EQ(slug_with(zip64_field({2, 3}), 8), "zip-local-header");
  EXPECT_EQ(slug_with(zip64_field({3, 2}), 8), "zip-local-header");
  EXPECT_EQ(slug_with(zip64_field({3}), 8), "zip-local-header");
  EXPECT_EQ(slug_with("", 8), "zip-local-header");
  EXPECT_EQ(slug_with(zip64_field({3, 3}) + zip64_field({3, 3}), 0), "zip-local-header");
  EXPECT_EQ(slug_with(zip64_field({3, 3}).substr(0, 19), 0), "zip-local-header");
}

TEST(TorchZip, RefusesOverlaps) {
  const std::string zip = torch214_zip();
  // The last record's data ends 16 bytes before the directory, with its descriptor between.
  const std::size_t last = 850;
  expect_all("zip-overlap", {
                                {"data in the directory", with(zip, last + 28, 2, 0x32 + 17)},
                                {"data behind the directory", with(zip, last + 28, 2, 0xFFFF)},
                                {"data in the next header", with(zip, kLocal + 28, 2, 0x3E + 17)},
                            });
  EXPECT_EQ(slug_for(with(zip, kLocal + 28, 2, 0x3E + 16)), "none") << "in the descriptor only";
  EXPECT_EQ(slug_for(with(zip, last + 28, 2, 0x32 + 16)), "none");
  const Part inner{"x/inner", "abc"};
  const Part outer{"x/outer", local_header(inner) + inner.data};
  const std::string directory = central_header(outer, 0) + central_header(inner, 37);
  const std::string nested = local_header(outer) + outer.data;
  EXPECT_EQ(slug_for(nested + directory + end_record(2, std::ssize(directory), std::ssize(nested), "")), "zip-overlap");
}

TEST(TorchZip, RefusesEveryTruncation) {
  for (const std::string& zip : {torch214_zip(), plain_zip({{"x/d", "abc"}}, "comment")})
    for (std::size_t length = 0; length < zip.size(); ++length)
      EXPECT_EQ(slug_for(zip.substr(0, length)), "zip-directory") << length;
}

/// Every value of every byte of the directory and the end records: an Error, or the same records. Only the crc
/// of a record can change unnoticed; it is compared with the data when that is read.
TEST(TorchZip, NoByteOfTheDirectoryMovesARecord) {
  const std::string zip = torch214_zip();
  const std::vector<ZipRecord> records = SparseZip(zip).directory().records;
  std::size_t accepted = 0;
  for (std::size_t position = kDirectory; position < zip.size(); ++position) {
    for (int flip = 1; flip < 256; ++flip) {
      ZipDirectory directory;
      try {
        directory = SparseZip(with(zip, position, 1, static_cast<unsigned char>(zip[position]) ^ flip)).directory();
      } catch (const Error&) {
        continue;
      }
      ++accepted;
      ASSERT_EQ(directory.records.size(), records.size()) << position;
      for (std::size_t i = 0; i < records.size(); ++i) {
        ASSERT_EQ(directory.records[i].name, records[i].name) << position << " ^ " << flip;
        ASSERT_EQ(directory.records[i].offset, records[i].offset) << position << " ^ " << flip;
        ASSERT_EQ(directory.records[i].bytes, records[i].bytes) << position << " ^ " << flip;
      }
    }
  }
  EXPECT_GT(accepted, 0u) << "versions, times and attributes do not matter";
}

}  // namespace
}  // namespace glu_ckpt
