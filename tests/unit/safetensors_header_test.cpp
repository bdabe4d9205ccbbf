#include "format/safetensors_header.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <functional>

#include "glu_ckpt/error.hpp"
#include "support/slug_of.hpp"

namespace glu_ckpt {
namespace {

constexpr i64 kLastDtype = static_cast<i64>(Dtype::U64);

std::string parse_slug(std::string_view json, i64 data_bytes) {
  return slug_of([&] { parse_header(json, data_bytes, "x"); });
}

i64 length_of(u64 length, i64 file_bytes) {
  std::array<std::byte, 8> prefix{};
  std::memcpy(prefix.data(), &length, sizeof length);
  return check_header_length(prefix, file_bytes, "x");
}

std::string json_of(const std::string& printed) { return printed.substr(8); }

TEST(HeaderLength, AcceptsUpToTheLimitAndTheFile) {
  EXPECT_EQ(length_of(0, 8), 0);
  EXPECT_EQ(length_of(2, 10), 2);
  EXPECT_EQ(length_of(100'000'000, 100'000'008), 100'000'000);
}

TEST(HeaderLength, RefusesWhatCannotBe) {
  EXPECT_EQ(slug_of([] { length_of(100'000'001, i64{1} << 40); }), "header-too-large");
  EXPECT_EQ(slug_of([] { length_of(~u64{0}, i64{1} << 40); }), "header-too-large");
  EXPECT_EQ(slug_of([] { length_of(3, 10); }), "header-length");
  EXPECT_EQ(slug_of([] { check_header_length({}, 0, "x"); }), "header-too-small");
  EXPECT_EQ(slug_of([] { length_of(0, 7); }), "header-too-small");
}

TEST(ParseHeader, ReadsTensorsInDataOrder) {
  const auto header = parse_header(
      R"({"b":{"dtype":"F32","shape":[2,3],"data_offsets":[4,28]},"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
      28, "x");
  ASSERT_EQ(header.tensors.size(), 2u);
  EXPECT_EQ(header.tensors[0].name, "a");
  EXPECT_EQ(header.tensors[1].name, "b");
  EXPECT_EQ(header.tensors[1].dtype, Dtype::F32);
  EXPECT_EQ(header.tensors[1].shape, (std::vector<i64>{2, 3}));
  EXPECT_EQ(header.tensors[1].offset, 4);
  EXPECT_EQ(header.tensors[1].bytes, 24);
}

TEST(ParseHeader, AcceptsWhatTheReferenceReaderAccepts) {
  EXPECT_TRUE(parse_header("{}", 0, "x").tensors.empty());
  EXPECT_TRUE(parse_header("  { }  \t\r\n", 0, "x").tensors.empty());
  EXPECT_TRUE(parse_header(R"({"__metadata__":null})", 0, "x").metadata.empty());
  EXPECT_EQ(parse_header(R"({"__metadata__":{"k":"v"}})", 0, "x").metadata.at("k"), "v");
  const std::string_view extra = R"({"a":{"dtype":"U8","note":{"x":[1.5]},"shape":[1],"data_offsets":[0,1]}})";
  EXPECT_EQ(parse_header(extra, 1, "x").tensors.size(), 1u);
}

TEST(ParseHeader, ScalarHasOneElement) {
  const auto header = parse_header(R"({"a":{"dtype":"F64","shape":[],"data_offsets":[0,8]}})", 8, "x");
  EXPECT_TRUE(header.tensors[0].shape.empty());
  EXPECT_EQ(header.tensors[0].bytes, 8);
}

TEST(ParseHeader, EmptyTensorsMayShareABoundary) {
  const auto header = parse_header(R"({"e":{"dtype":"U8","shape":[0],"data_offsets":[4,4]},)"
                                   R"("d":{"dtype":"F32","shape":[0,7],"data_offsets":[0,0]},)"
                                   R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                                   R"("f":{"dtype":"U8","shape":[3,0],"data_offsets":[4,4]}})",
                                   4, "x");
  ASSERT_EQ(header.tensors.size(), 4u);
  EXPECT_EQ(header.tensors[0].name, "d");
  EXPECT_EQ(header.tensors[1].name, "a");
  EXPECT_EQ(header.tensors[2].name, "e");
  EXPECT_EQ(header.tensors[3].name, "f");
}

TEST(ParseHeader, UnescapesNames) {
  const auto header =
      parse_header(R"({"\u0061\"\\\/\n\ud83d\ude00\u00e9":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1, "x");
  EXPECT_EQ(header.tensors[0].name, "a\"\\/\n\xf0\x9f\x98\x80\xc3\xa9");
}

TEST(ParseHeader, ReadsEveryDtype) {
  for (i64 number = 0; number <= kLastDtype; ++number) {
    const auto dtype = static_cast<Dtype>(number);
    const i64 bytes = dtype_bits(dtype);  // of 8 elements
    const std::string json =
        fmt::format(R"({{"a":{{"dtype":"{}","shape":[8],"data_offsets":[0,{}]}}}})", dtype_name(dtype), bytes);
    const auto header = parse_header(json, bytes, "x");
    EXPECT_EQ(header.tensors[0].dtype, dtype);
    EXPECT_EQ(header.tensors[0].bytes, bytes);
  }
}

TEST(ParseHeader, SubByteTensorsFillWholeBytes) {
  const auto sub_byte = [](std::string_view dtype, int count, int bytes) {
    return parse_slug(
        fmt::format(R"({{"a":{{"dtype":"{}","shape":[{}],"data_offsets":[0,{}]}}}})", dtype, count, bytes), bytes);
  };
  EXPECT_EQ(sub_byte("F4", 2, 1), "none");
  EXPECT_EQ(sub_byte("F4", 3, 2), "sub-byte-shape");
  EXPECT_EQ(sub_byte("F6_E3M2", 4, 3), "none");
  EXPECT_EQ(sub_byte("F6_E3M2", 2, 2), "sub-byte-shape");
}

TEST(ParseHeader, RefusesTwoNamesThatAreOneAfterUnescaping) {
  EXPECT_EQ(parse_slug(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
                       R"("\u0061":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
                       0),
            "duplicate-key");
}

TEST(ParseHeader, SaysWhatFileAndTensorAreAtFault) {
  try {
    parse_header(R"({"a.weight":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8, "dir/x.safetensors");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::SizeMismatch);
    EXPECT_EQ(error.file(), "dir/x.safetensors");
    EXPECT_EQ(error.tensor(), "a.weight");
    EXPECT_STREQ(error.what(),
                 "dir/x.safetensors: byte 9: tensor 'a.weight': F32 [3] takes 12 bytes, but its data_offsets span 8");
  }
}

TEST(ParseHeader, ReportsHolesAndOverlaps) {
  const auto two = [](int begin, int data_bytes) {
    return parse_slug(fmt::format(R"({{"a":{{"dtype":"U8","shape":[4],"data_offsets":[0,4]}},)"
                                  R"("b":{{"dtype":"U8","shape":[2],"data_offsets":[{},{}]}}}})",
                                  begin, begin + 2),
                      data_bytes);
  };
  EXPECT_EQ(two(4, 6), "none");
  EXPECT_EQ(two(5, 7), "offsets-hole");
  EXPECT_EQ(two(3, 5), "offsets-overlap");
  EXPECT_EQ(two(4, 7), "trailing-bytes");
  EXPECT_EQ(two(4, 5), "offsets-past-end");
}

TEST(PrintHeader, WritesWhatTheReferenceWriterWrites) {
  const std::vector<OutputTensor> tensors = {{"w", Dtype::BF16, {2, 3}, 12, 0, 0}, {"s", Dtype::U8, {}, 1, 0, 12}};
  const std::string printed = print_header(tensors, {{"format", "pt"}});
  const std::string json = json_of(printed);
  EXPECT_EQ(json.substr(0, json.find_last_not_of(' ') + 1),
            R"({"__metadata__":{"format":"pt"},"w":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},)"
            R"("s":{"dtype":"U8","shape":[],"data_offsets":[12,13]}})");
  EXPECT_EQ(json.size() % 8, 0u);
  u64 length = 0;
  std::memcpy(&length, printed.data(), 8);
  EXPECT_EQ(length, json.size());
}

TEST(PrintHeader, EscapesAndParsesBack) {
  const std::string name = "q\"\\/\t\x01\x7f\xc3\xa9\xf0\x9f\x98\x80" + std::string(1, '\0') + "end";
  const std::vector<OutputTensor> tensors = {{name, Dtype::F4, {2, 4}, 4, 0, 0}};
  const auto header = parse_header(json_of(print_header(tensors, {{"k\n", "v\"\x1f"}})), 4, "x");
  EXPECT_EQ(header.tensors[0].name, name);
  EXPECT_EQ(header.tensors[0].shape, (std::vector<i64>{2, 4}));
  EXPECT_EQ(header.metadata.at("k\n"), "v\"\x1f");
}

TEST(PrintHeader, WithoutTensorsIsAnObject) { EXPECT_EQ(json_of(print_header({}, {})), "{}      "); }

TEST(PrintHeader, EndsWhereTheDataPhaseSays) {
  for (std::size_t length = 1; length < 20; ++length)
    for (const i64 phase : {0, 8, 56, 64, 72, 2048, 4088}) {
      const std::vector<OutputTensor> tensors = {{std::string(length, 'n'), Dtype::U8, {3}, 3, 0, 0}};
      const std::string plain = print_header(tensors, {{"k", "v"}});
      const std::string printed = print_header(tensors, {{"k", "v"}}, phase);
      EXPECT_EQ(static_cast<i64>(printed.size()) % kDataPhaseBytes, phase);
      EXPECT_LT(printed.size(), plain.size() + static_cast<std::size_t>(kDataPhaseBytes));
      u64 length_field = 0;
      std::memcpy(&length_field, printed.data(), 8);
      EXPECT_EQ(length_field, printed.size() - 8);
      EXPECT_EQ(printed.substr(8, plain.size() - 8), json_of(plain));
      EXPECT_EQ(printed.find_first_not_of(' ', plain.size()), std::string::npos);
      EXPECT_EQ(parse_header(json_of(printed), 3, "x").tensors[0].name, tensors[0].name);
    }
}

TEST(PrintHeader, KeepsAPhaseOnlyWhereNumbersStayAligned) {
  EXPECT_EQ(shareable_phase(0), 0);
  EXPECT_EQ(shareable_phase(3 * 4096 + 1016), 1016);
  EXPECT_EQ(shareable_phase(4), std::nullopt);
  EXPECT_EQ(shareable_phase(1017), std::nullopt);
}

TEST(PrintHeader, RefusesMoreThanReadersTake) {
  const std::vector<OutputTensor> tensors = {{std::string(100'000'001, 'a'), Dtype::U8, {0}, 0, 0, 0}};
  EXPECT_EQ(slug_of([&] { print_header(tensors, {}); }), "header-too-large");
}

}  // namespace
}  // namespace glu_ckpt
