#include "format/zip_layout.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "core/crc32.hpp"
#include "support/golden_zip.hpp"
#include "support/slug_of.hpp"

namespace glu_ckpt {
namespace {

constexpr i64 kLimit = 0xFFFFFFFF;

/// A record to write; its data lies in a zip at hand.
struct Part {
  std::string name;
  std::size_t offset;
  std::size_t bytes;
};

/// Writes `parts` of `zip` into a zip of their own, filled with '?' where nothing was written.
std::string rebuild(const std::string& zip, const std::vector<Part>& parts) {
  ZipLayout layout("archive");
  for (const Part& part : parts) layout.add(part.name, static_cast<i64>(part.bytes));
  std::string out(static_cast<std::size_t>(layout.total_bytes()), '?');
  const auto put = [&out](i64 offset, const std::string& text) {
    ASSERT_LE(static_cast<std::size_t>(offset) + text.size(), out.size());
    out.replace(static_cast<std::size_t>(offset), text.size(), text);
  };
  std::vector<u32> crcs;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::string data = zip.substr(parts[i].offset, parts[i].bytes);
    crcs.push_back(crc32_of(std::as_bytes(std::span(data))));
    put(layout.header_offset(i), layout.header(i));
    put(layout.data_offset(i), data);
    put(layout.descriptor_offset(i), layout.descriptor(i, crcs[i]));
  }
  put(layout.directory_offset(), layout.directory(crcs));
  return out;
}

template <typename T>
T number_at(const std::string& text, std::size_t position) {
  T value{};
  std::memcpy(&value, text.data() + position, sizeof value);
  return value;
}

/// Little-endian values after the 4 bytes that an extra field begins with.
std::vector<i64> zip64_values(const std::string& text, std::size_t position) {
  EXPECT_EQ(number_at<std::uint16_t>(text, position), 1);
  std::vector<i64> values(number_at<std::uint16_t>(text, position + 2) / 8);
  std::memcpy(values.data(), text.data() + position + 4, values.size() * 8);
  return values;
}

TEST(ZipLayout, RebuildsAZipOfTorch214) {
  const std::string golden = torch214_zip();
  EXPECT_EQ(rebuild(golden, {{"data.pkl", 64, 157},
                             {".format_version", 320, 1},
                             {".storage_alignment", 448, 2},
                             {"byteorder", 576, 6},
                             {"data/0", 704, 12},
                             {"version", 832, 2},
                             {".data/serialization_id", 960, 40}}),
            golden);
}

TEST(ZipLayout, RebuildsAZipOfTorch113) {
  const std::string golden = torch113_zip();
  EXPECT_EQ(rebuild(golden, {{"data.pkl", 64, 157}, {"data/0", 320, 12}, {"version", 448, 2}}), golden);
}

/// Data begins at the next multiple of 64 after header, name and at least 4 bytes of padding.
TEST(ZipLayout, PadsUpToTheNextMultipleOf64) {
  for (std::size_t name_bytes = 1; name_bytes <= 200; ++name_bytes) {
    ZipLayout layout("a");
    layout.add(std::string(name_bytes, 'n'), 5);
    const auto unpadded = static_cast<i64>(30 + 2 + name_bytes + 4);
    EXPECT_EQ(layout.data_offset(0) % 64, 0);
    EXPECT_GE(layout.data_offset(0), unpadded);
    EXPECT_LT(layout.data_offset(0), unpadded + 64);
    const std::string header = layout.header(0);
    EXPECT_EQ(std::ssize(header), layout.data_offset(0));
    EXPECT_EQ(header.substr(32 + name_bytes, 2), "FB");
    EXPECT_EQ(number_at<std::uint16_t>(header, 34 + name_bytes), layout.data_offset(0) - unpadded);
    EXPECT_EQ(number_at<std::uint16_t>(header, 28), layout.data_offset(0) - unpadded + 4);
  }
}

TEST(ZipLayout, ARecordWithoutDataHasNoDescriptor) {
  ZipLayout layout("archive");
  layout.add("data/0", 0);
  layout.add("data/1", 3);
  EXPECT_EQ(number_at<std::uint16_t>(layout.header(0), 6), 0x0800);
  EXPECT_EQ(number_at<std::uint16_t>(layout.header(1), 6), 0x0808);
  EXPECT_EQ(layout.descriptor(0, 7), "");
  EXPECT_EQ(layout.descriptor(1, 7).size(), 16u);
  EXPECT_EQ(layout.header_offset(1), layout.data_offset(0));
  const std::string directory = layout.directory(std::vector<u32>{0, 7});
  EXPECT_EQ(number_at<std::uint16_t>(directory, 8), 0x0800);
  EXPECT_EQ(number_at<std::uint16_t>(directory, 46 + 14 + 8), 0x0808);
}

TEST(ZipLayout, ALargeRecordHasWideSizes) {
  for (const i64 bytes : {kLimit - 1, kLimit, kLimit + 1, i64{1} << 40}) {
    SCOPED_TRACE(bytes);
    const bool wide = bytes >= kLimit;
    ZipLayout layout("archive");
    layout.add("data/0", bytes);
    const std::string header = layout.header(0);
    EXPECT_EQ(layout.data_offset(0), 128 - (wide ? 0 : 64));
    EXPECT_EQ(std::ssize(header), layout.data_offset(0));
    EXPECT_EQ(header.substr(14, 12), std::string(12, '\0')) << "the local fields stay 0";
    if (wide) {
      EXPECT_EQ(zip64_values(header, 44), (std::vector<i64>{bytes, 0}));
    }
    EXPECT_EQ(header.substr(wide ? 64 : 44, 2), "FB");

    const std::string descriptor = layout.descriptor(0, 0x01020304);
    EXPECT_EQ(descriptor.substr(0, 8), std::string("PK\x07\x08\x04\x03\x02\x01"));
    ASSERT_EQ(descriptor.size(), wide ? 24u : 16u);
    EXPECT_EQ(wide ? number_at<i64>(descriptor, 8) : number_at<u32>(descriptor, 8), bytes);
    EXPECT_EQ(wide ? number_at<i64>(descriptor, 16) : number_at<u32>(descriptor, 12), bytes);
    EXPECT_EQ(layout.directory_offset(), layout.data_offset(0) + bytes + (wide ? 24 : 16));

    const std::string directory = layout.directory(std::vector<u32>{0x01020304});
    EXPECT_EQ(number_at<u32>(directory, 16), 0x01020304u);
    EXPECT_EQ(number_at<u32>(directory, 20), std::min(bytes, kLimit));
    EXPECT_EQ(number_at<u32>(directory, 24), std::min(bytes, kLimit));
    EXPECT_EQ(number_at<std::uint16_t>(directory, 30), wide ? 20 : 0);
    if (wide) {
      EXPECT_EQ(zip64_values(directory, 60), (std::vector<i64>{bytes, bytes}));
    }
    EXPECT_EQ(layout.total_bytes(), layout.directory_offset() + std::ssize(directory));
  }
}

/// The first record ends so that the header of the second is at, before or after the limit.
TEST(ZipLayout, AFarRecordHasAWideOffset) {
  for (const i64 position : {kLimit - 1, kLimit, kLimit + 1, i64{1} << 40}) {
    SCOPED_TRACE(position);
    const bool wide = position >= kLimit;
    const bool first_is_wide = position - 128 - 24 >= kLimit;
    ZipLayout layout("archive");
    layout.add("data/0", first_is_wide ? position - 128 - 24 : position - 64 - 16);
    layout.add("data/1", 9);
    ASSERT_EQ(layout.header_offset(1), position);
    const std::string header = layout.header(1);
    EXPECT_EQ(layout.data_offset(1) % 64, 0);
    EXPECT_EQ(position + std::ssize(header), layout.data_offset(1));
    if (wide) {
      EXPECT_EQ(zip64_values(header, 44), (std::vector<i64>{position}));
    }
    EXPECT_EQ(header.substr(wide ? 56 : 44, 2), "FB");
    EXPECT_GE(layout.data_offset(1), position + (wide ? 60 : 48));
    EXPECT_LT(layout.data_offset(1), position + (wide ? 60 : 48) + 64);
    EXPECT_EQ(layout.descriptor(1, 0).size(), wide ? 24u : 16u) << "of a small record, too";
    EXPECT_EQ(layout.directory_offset(), layout.data_offset(1) + 9 + (wide ? 24 : 16));

    const std::string directory = layout.directory(std::vector<u32>{0, 0});
    const std::size_t second = 60 + (first_is_wide ? 20 : 0);
    EXPECT_EQ(number_at<u32>(directory, second + 24), 9u);
    EXPECT_EQ(number_at<u32>(directory, second + 42), std::min(position, kLimit));
    EXPECT_EQ(number_at<std::uint16_t>(directory, second + 30), wide ? 12 : 0);
    if (wide) {
      EXPECT_EQ(zip64_values(directory, second + 60), (std::vector<i64>{position}));
    }
    const std::size_t end = directory.size() - 22;
    EXPECT_EQ(number_at<i64>(directory, end - 20 - 56 + 48), layout.directory_offset());
    EXPECT_EQ(number_at<u32>(directory, end + 16), std::min(layout.directory_offset(), kLimit));
    EXPECT_EQ(layout.total_bytes(), layout.directory_offset() + std::ssize(directory));
  }
}

TEST(ZipLayout, ALargeAndFarRecordHasAllWideValues) {
  ZipLayout layout("archive");
  layout.add("data/0", kLimit);
  layout.add("data/1", kLimit + 5);
  const i64 position = layout.header_offset(1);
  ASSERT_GT(position, kLimit);
  EXPECT_EQ(zip64_values(layout.header(1), 44), (std::vector<i64>{kLimit + 5, 0, position}));
  EXPECT_EQ(layout.header(1).substr(44 + 28, 2), "FB");
  const std::string directory = layout.directory(std::vector<u32>{0, 0});
  EXPECT_EQ(zip64_values(directory, 80 + 60), (std::vector<i64>{kLimit + 5, kLimit + 5, position}));
  EXPECT_EQ(layout.total_bytes(), layout.directory_offset() + std::ssize(directory));
}

TEST(ZipLayout, CountsOfMoreThan16BitsSaturate) {
  ZipLayout layout("a");
  for (int i = 0; i < 65536; ++i) layout.add("d", 0);
  const std::string directory = layout.directory(std::vector<u32>(65536));
  const std::size_t end = directory.size() - 22;
  EXPECT_EQ(number_at<std::uint16_t>(directory, end + 8), 0xFFFF);
  EXPECT_EQ(number_at<std::uint16_t>(directory, end + 10), 0xFFFF);
  EXPECT_EQ(number_at<i64>(directory, end - 20 - 56 + 24), 65536);
  EXPECT_EQ(number_at<i64>(directory, end - 20 - 56 + 32), 65536);
}

TEST(ZipLayout, RefusesWhatAZipCannotHold) {
  ZipLayout layout("a");
  EXPECT_EQ(slug_of([&] { layout.add(std::string(65534, 'n'), 0); }), "zip-directory");
  EXPECT_EQ(slug_of([&] { layout.add(std::string(65533, 'n'), 0); }), "none");
  EXPECT_EQ(slug_of([&] { layout.add("d", std::numeric_limits<i64>::max()); }), "zip-directory");
  EXPECT_EQ(layout.size(), 1u) << "what is refused is not there";
}

}  // namespace
}  // namespace glu_ckpt
