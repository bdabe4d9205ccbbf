#include "format/torch_archive.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "core/crc32.hpp"
#include "format/extras.hpp"
#include "format/piecewise_crc.hpp"
#include "format/torch_zip.hpp"
#include "support/slug_of.hpp"

namespace glu_ckpt {
namespace {

std::vector<std::byte> pattern(std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * 7 + (i >> 8) * 13);
  return bytes;
}

TEST(PiecewiseCrc, AnyOrderGivesTheWholesChecksum) {
  const auto bytes = pattern(10'007);
  std::mt19937 random(3);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::pair<std::size_t, std::size_t>> parts;
    for (std::size_t begin = 0; begin < bytes.size();) {
      const std::size_t count = std::min<std::size_t>(bytes.size() - begin, 1 + random() % 2000);
      parts.emplace_back(begin, count);
      begin += count;
    }
    std::shuffle(parts.begin(), parts.end(), random);
    PiecewiseCrc crc;
    i64 wholes = 0;
    for (const auto& [begin, count] : parts)
      wholes += crc.add(static_cast<i64>(begin), std::span(bytes).subspan(begin, count)) == std::ssize(bytes) ? 1 : 0;
    EXPECT_EQ(wholes, 1);  // the last piece's call alone says that all are there
    EXPECT_EQ(crc.finish(10'007, "x"), crc32_of(bytes));
  }
}

TEST(PiecewiseCrc, SeesBytesThatAreMissingOrTwice) {
  const auto bytes = pattern(100);
  const auto finish = [&](std::vector<std::pair<std::size_t, std::size_t>> parts) {
    return slug_of([&] {
      PiecewiseCrc crc;
      for (const auto& [begin, count] : parts) crc.add(static_cast<i64>(begin), std::span(bytes).subspan(begin, count));
      crc.finish(100, "x");
    });
  };
  EXPECT_EQ(finish({{0, 50}, {50, 50}}), "none");
  EXPECT_EQ(finish({{0, 50}, {51, 49}}), "io");
  EXPECT_EQ(finish({{0, 50}, {49, 51}}), "io");
  EXPECT_EQ(finish({{0, 50}, {0, 50}, {50, 50}}), "io");
  EXPECT_EQ(finish({{50, 50}, {0, 50}, {50, 50}}), "io");
  EXPECT_EQ(finish({{0, 99}}), "io");
  EXPECT_EQ(finish({}), "io");
}

TEST(ArchivePrefix, IsTheStemWhereItIsAscii) {
  EXPECT_EQ(archive_prefix("model_optim_rng.pt"), "model_optim_rng");
  EXPECT_EQ(archive_prefix("big.name.pt"), "big.name");
  EXPECT_EQ(archive_prefix("n\xC3\xA4me.pt"), "archive");
  EXPECT_EQ(archive_prefix(".pt"), "archive");
}

TEST(ObjectZip, IsATorchZip) {
  const std::string zip = print_object_zip("pickle");
  const ReadAt read = [&](std::span<std::byte> out, i64 offset) {
    std::memcpy(out.data(), zip.data() + offset, out.size());
  };
  const ZipDirectory directory = read_zip_directory(read, static_cast<i64>(zip.size()), "zip");
  ASSERT_NE(directory.find("data.pkl"), nullptr);
  EXPECT_EQ(zip.substr(static_cast<std::size_t>(directory.find("data.pkl")->offset), 6), "pickle");
  EXPECT_NE(directory.find("version"), nullptr);
}

class PatternObjects final : public ObjectStore {
 public:
  std::vector<std::byte> read(std::size_t number) const override { return pattern(3 + number * 1000); }
};

Structure open_text(const std::string& zip) {
  const ReadAt read = [zip](std::span<std::byte> out, i64 offset) {
    std::memcpy(out.data(), zip.data() + static_cast<std::size_t>(offset), out.size());
  };
  return read_extras(read, std::ssize(zip), "extras");
}

TEST(Extras, KeepObjectsAndPaths) {
  const auto store = std::make_shared<PatternObjects>();
  Structure structure;
  structure.objects = {{"args.lr", 3, store, 0}, {"x._extra_state/shard_0_2", 1003, store, 1}};
  structure.paths = {{"m.w0", {{"m", false}, {"w0", false}}}, {"args.lr", {{"args", false}, {"3", true}}}};
  structure.metadata_json = "{\"sharded_backend\": \"torch_dist\"}";
  structure.has_integrity = true;
  const std::string zip = print_extras(structure, {{"m.w", Dtype::F32, {1}, 4, 0, 0, "m.w0"}});
  const Structure found = open_text(zip);
  ASSERT_EQ(found.objects.size(), 2U);
  EXPECT_EQ(found.objects[1].name, "x._extra_state/shard_0_2");
  EXPECT_EQ(found.objects[1].bytes, 1003);
  EXPECT_EQ(found.objects[1].read(), pattern(1003));
  EXPECT_EQ(found.paths.at("m.w"), (KeyPath{{"m", false}, {"w", false}}));
  EXPECT_EQ(found.paths.at("args.lr"), (KeyPath{{"args", false}, {"3", true}}));
  EXPECT_FALSE(found.paths.contains("m.w0"));
  EXPECT_EQ(found.metadata_json, structure.metadata_json);
  EXPECT_TRUE(found.has_integrity);
}

TEST(Extras, ADamagedObjectIsSeen) {
  Structure structure;
  structure.objects = {{"a", 3, std::make_shared<PatternObjects>(), 0}};
  std::string zip = print_extras(structure, {});
  const auto content = pattern(3);
  const std::size_t at = zip.find(std::string(reinterpret_cast<const char*>(content.data()), 3));
  ASSERT_NE(at, std::string::npos);
  zip[at] ^= 1;
  EXPECT_EQ(slug_of([&] { open_text(zip).objects[0].read(); }), "zip-crc");
}

}  // namespace
}  // namespace glu_ckpt
