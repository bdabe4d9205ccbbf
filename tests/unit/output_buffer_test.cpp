#include "glu_ckpt/ops/output_buffer.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <random>

#include "support/mlp_cases.hpp"
#include "support/slug_of.hpp"

namespace glu_ckpt {
namespace {

using namespace support;

/// The sentence of the Error that `action` throws; empty where there is none.
std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::byte some_memory[1 << 12];

TensorView right_buffer() { return {some_memory, Dtype::BF16, {6, 8}, {8, 1}, "cuda:1", false}; }

/// One thing wrong with a buffer, and words of the sentence that says so.
struct Fault {
  std::function<void(TensorView&)> plant;
  std::vector<std::string> words;
};

/// In the order in which they are to be found.
std::vector<Fault> faults() {
  return {{[](TensorView& buffer) {
             buffer.shape = {8, 6};
           },
           {"[8, 6]", "[6, 8]", "shape"}},
          {[](TensorView& buffer) { buffer.dtype = Dtype::F32; }, {"F32", "BF16", "dtype"}},
          {[](TensorView& buffer) { buffer.device = "cuda:0"; }, {"cuda:0", "cuda:1"}},
          {[](TensorView& buffer) {
             buffer.strides = {1, 6};
           },
           {"[1, 6]", "contiguous"}},
          {[](TensorView& buffer) { buffer.requires_grad = true; }, {"gradient", "detach()"}}};
}

/// Every set of faults at once: the one that comes first in the order is named, and no other.
TEST(OutputBuffer, TheFirstFaultInOrderIsNamed) {
  const auto all = faults();
  for (unsigned set = 0; set < 1U << all.size(); ++set) {
    SCOPED_TRACE(set);
    TensorView buffer = right_buffer();
    std::size_t first = all.size();
    for (std::size_t f = all.size(); f-- > 0;)
      if ((set >> f & 1) != 0) {
        all[f].plant(buffer);
        first = f;
      }
    const auto check = [&] { check_output_buffer(buffer, {6, 8}, Dtype::BF16, "cuda:1"); };
    EXPECT_EQ(slug_of(check), first == all.size() ? "none" : "usage");
    if (first == all.size()) continue;
    const std::string message = message_of(check);
    for (const std::string& word : all[first].words) EXPECT_NE(message.find(word), std::string::npos) << message;
    EXPECT_NE(message.find("; "), std::string::npos) << message;
  }
}

TEST(OutputBuffer, ShapesAreEqualToTheLastExtent) {
  const auto slug_of_shape = [](const std::vector<i64>& shape) {
    TensorView buffer = right_buffer();
    buffer.shape = shape;
    buffer.strides = {};
    return slug_of([&] { check_output_buffer(buffer, {6, 8}, Dtype::BF16, "cuda:1"); });
  };
  EXPECT_EQ(slug_of_shape({6, 8}), "none");
  for (const std::vector<i64>& shape :
       std::vector<std::vector<i64>>{{}, {48}, {7, 8}, {5, 8}, {6, 9}, {1, 6, 8}, {6, 8, 1}, {2, 3, 8}, {8, 6}})
    EXPECT_EQ(slug_of_shape(shape), "usage") << shape_text(shape);
}

TEST(OutputBuffer, DevicesAreComparedWithTheirIndex) {
  const auto slug_of_devices = [](const std::string& of_buffer, const std::string& expected) {
    TensorView buffer = right_buffer();
    buffer.device = of_buffer;
    return slug_of([&] { check_output_buffer(buffer, {6, 8}, Dtype::BF16, expected); });
  };
  EXPECT_EQ(slug_of_devices("cuda", "cuda:0"), "none");
  EXPECT_EQ(slug_of_devices("cuda:0", "cuda"), "none");
  EXPECT_EQ(slug_of_devices("cpu", "cpu"), "none");
  EXPECT_EQ(slug_of_devices("cuda", "cuda:1"), "usage");
  EXPECT_EQ(slug_of_devices("cuda:0", "cpu"), "usage");
  EXPECT_EQ(slug_of_devices("cpu", "cuda:0"), "usage");
  EXPECT_EQ(slug_of_devices("tpu", "cpu"), "usage");
}

TEST(OutputBuffer, Contiguity) {
  const auto contiguous = [](const std::vector<i64>& shape, const std::vector<i64>& strides) {
    return is_contiguous({some_memory, Dtype::BF16, shape, strides, "cpu", false});
  };
  EXPECT_TRUE(contiguous({}, {}));
  EXPECT_TRUE(contiguous({6, 8}, {}));
  EXPECT_TRUE(contiguous({6, 8}, {8, 1}));
  EXPECT_TRUE(contiguous({2, 3, 4}, {12, 4, 1}));
  EXPECT_FALSE(contiguous({2, 3, 4}, {12, 4, 2}));
  EXPECT_FALSE(contiguous({2, 3, 4}, {13, 4, 1}));
  EXPECT_FALSE(contiguous({6, 8}, {16, 1}));
  EXPECT_FALSE(contiguous({6, 8}, {0, 1}));
  EXPECT_FALSE(contiguous({6, 8}, {-8, 1}));
  EXPECT_FALSE(contiguous({6, 8}, {1}));
  // Strides of extents of 1 mean nothing, those of no elements neither.
  EXPECT_TRUE(contiguous({1, 8}, {12345, 1}));
  EXPECT_TRUE(contiguous({6, 1, 8}, {8, -3, 1}));
  EXPECT_TRUE(contiguous({6, 1}, {1, 99}));
  EXPECT_TRUE(contiguous({0, 8}, {3, 5}));
  // A product beyond 64 bits is no way around it.
  EXPECT_FALSE(contiguous({4, i64{1} << 32, i64{1} << 32}, {0, i64{1} << 32, 1}));
}

TEST(OutputBuffer, AMissingBufferIsAllocated) {
  i64 asked = -1;
  std::string where;
  const AllocateOutput allocate = [&](i64 bytes, const std::string& device) {
    asked = bytes;
    where = device;
    return some_memory;
  };
  const TensorView made = validate_or_alloc(nullptr, {6, 8}, Dtype::F32, "cuda", allocate);
  EXPECT_EQ(asked, 6 * 8 * 4);
  EXPECT_EQ(where, "cuda:0");
  EXPECT_EQ(made.data, some_memory);
  EXPECT_EQ(slug_of([&] { check_output_buffer(made, {6, 8}, Dtype::F32, "cuda:0"); }), "none");

  asked = -1;
  const TensorView given = right_buffer();
  EXPECT_EQ(validate_or_alloc(&given, {6, 8}, Dtype::BF16, "cuda:1", allocate).data, given.data);
  EXPECT_EQ(validate_or_alloc(nullptr, {0, 8}, Dtype::BF16, "cpu", allocate).data, nullptr);
  EXPECT_EQ(asked, -1);

  const AllocateOutput nothing = [](i64, const std::string&) { return nullptr; };
  EXPECT_EQ(slug_of([&] { validate_or_alloc(nullptr, {6, 8}, Dtype::BF16, "cpu", nothing); }), "no-memory");
  EXPECT_EQ(slug_of([&] {
              validate_or_alloc(nullptr, {1LL << 32, 1LL << 32}, Dtype::BF16, "cpu", allocate);
            }),
            "shape-overflow");
  EXPECT_EQ(slug_of([&] { validate_or_alloc(nullptr, {1LL << 60}, Dtype::BF16, "cpu", allocate); }), "shape-overflow");
  EXPECT_EQ(slug_of([&] { validate_or_alloc(nullptr, {-1, 8}, Dtype::BF16, "cpu", allocate); }), "usage");
  EXPECT_EQ(asked, -1);
  TensorView nowhere = right_buffer();
  nowhere.data = nullptr;
  EXPECT_EQ(slug_of([&] { validate_or_alloc(&nowhere, {6, 8}, Dtype::BF16, "cuda:1", allocate); }), "usage");
}

/// Three experts, one without tokens, and three rows behind the last split.
class GroupedMlpInto : public testing::Test {
 protected:
  static constexpr i64 kRows = 12, kWritten = 9, kHidden = 8;
  static constexpr std::byte kSentinel{0x5a};

  GroupedMlpInto() : stored_(shape_, random_experts(shape_, random_), {"contiguous", 16}) {
    x_ = to_bytes(random_values(kRows * kHidden, 1, Dtype::BF16, random_), Dtype::BF16);
    for (i64 t = 0; t < kRows; ++t) probs_.push_back(0.1F * static_cast<float>(t + 1));
    tensors_.x = {x_.data(), Dtype::BF16, {kRows, kHidden}, {}, "cpu", false};
    tensors_.splits = {reinterpret_cast<std::byte*>(splits_.data()), Dtype::I64, {3}, {}, "cpu", false};
    tensors_.probs = {reinterpret_cast<std::byte*>(probs_.data()), Dtype::F32, {kRows}, {}, "cpu", false};
    buffer_ = {out_.data(), Dtype::BF16, {kRows, kHidden}, {}, "cpu", false};
  }

  GroupedMlp mlp() const { return {kHidden, Dtype::BF16, {}, stored_.experts()}; }

  TensorView run(const TensorView* out) {
    tensors_.out = out;
    return grouped_mlp_into(mlp(), tensors_, allocate_, 1);
  }

  /// A wrong argument: an Error with these words, nothing allocated and nothing written.
  void expect_refused(const std::vector<std::string>& words) {
    const std::string message = message_of([&] { run(&buffer_); });
    for (const std::string& word : words) EXPECT_NE(message.find(word), std::string::npos) << message;
    EXPECT_EQ(slug_of([&] { run(&buffer_); }), "usage");
    EXPECT_EQ(slug_of([&] { run(nullptr); }), "usage");
    EXPECT_EQ(allocations_, 0);
    EXPECT_EQ(out_, std::vector<std::byte>(out_.size(), kSentinel));
  }

  std::mt19937 random_{7};
  MlpShape shape_{kHidden, {16, 16, 16}, Dtype::BF16, {}, true};
  StoredExperts stored_;
  std::vector<std::byte> x_;
  std::vector<i64> splits_{4, 0, 5};
  std::vector<float> probs_;
  std::vector<std::byte> out_ = std::vector<std::byte>(kRows * kHidden * 2, kSentinel);
  std::vector<std::byte> fresh_ = std::vector<std::byte>(kRows * kHidden * 2, std::byte{0xc3});
  int allocations_ = 0;
  AllocateOutput allocate_ = [this](i64 bytes, const std::string&) {
    ++allocations_;
    EXPECT_EQ(bytes, std::ssize(fresh_));
    return fresh_.data();
  };
  MlpTensors tensors_;
  TensorView buffer_;
};

TEST_F(GroupedMlpInto, TheBufferIsTheOutputAndItsTailStays) {
  const TensorView out = run(&buffer_);
  EXPECT_EQ(out.data, out_.data());
  EXPECT_EQ(allocations_, 0);
  const TensorView made = run(nullptr);
  EXPECT_EQ(made.data, fresh_.data());
  EXPECT_EQ(made.shape, tensors_.x.shape);
  EXPECT_EQ(allocations_, 1);
  std::vector<std::byte> expected(out_.size(), kSentinel);
  grouped_mlp_host(mlp(), x_.data(), kRows, splits_, probs_.data(), expected.data(), 1);
  EXPECT_TRUE(out_ == expected);
  const std::size_t written = kWritten * kHidden * 2;
  EXPECT_EQ(std::memcmp(fresh_.data(), expected.data(), written), 0);
  for (std::size_t i = written; i < out_.size(); ++i) {
    EXPECT_EQ(out_[i], kSentinel);
    EXPECT_EQ(fresh_[i], std::byte{0xc3});
  }
}

TEST_F(GroupedMlpInto, LeadingAxesAreTokens) {
  run(&buffer_);
  const auto expected = out_;
  tensors_.x.shape = buffer_.shape = {2, 6, kHidden};
  std::fill(out_.begin(), out_.end(), kSentinel);
  EXPECT_EQ(run(&buffer_).shape, (std::vector<i64>{2, 6, kHidden}));
  EXPECT_TRUE(out_ == expected);
  buffer_.shape = {kRows, kHidden};
  EXPECT_EQ(slug_of([&] { run(&buffer_); }), "usage");
}

TEST_F(GroupedMlpInto, WrongInputIsRefusedBeforeAnythingIsDone) {
  const MlpTensors right = tensors_;
  const auto wrong = [&](auto&& plant, const std::vector<std::string>& words) {
    SCOPED_TRACE(words.back());
    tensors_ = right;
    plant(tensors_);
    expect_refused(words);
  };
  wrong([](MlpTensors& t) { t.x.dtype = Dtype::F16; }, {"x", "F16", "BF16"});
  wrong([](MlpTensors& t) { t.x.device = "cuda:2"; }, {"x", "cuda:2", "cpu"});
  wrong([](MlpTensors& t) { t.x.strides = {1, kRows}; }, {"x", "[1, 12]", "contiguous"});
  wrong([](MlpTensors& t) { t.x.shape = {kRows * 2, kHidden / 2}; }, {"x", "[24, 4]", "[..., 8]"});
  wrong([](MlpTensors& t) { t.x.shape = {}; }, {"x", "[]", "[..., 8]"});
  wrong([](MlpTensors& t) { t.x.data = nullptr; }, {"x", "[12, 8]", "address"});
  wrong([](MlpTensors& t) { t.splits.dtype = Dtype::I32; }, {"splits", "I32", "I64"});
  wrong([](MlpTensors& t) { t.splits.shape = {2}; }, {"splits", "[2]", "[3]", "one per expert"});
  wrong([](MlpTensors& t) { t.splits.device = "cuda"; }, {"splits", "cuda", "cpu"});
  wrong([](MlpTensors& t) { t.splits.strides = {2}; }, {"splits", "[2]", "contiguous"});
  wrong([](MlpTensors& t) { t.splits.data += 4; }, {"splits", "4 bytes past a multiple of 8"});
  wrong([](MlpTensors& t) { t.probs.shape = {kRows - 1}; }, {"probs", "[11]", "[12]", "one per row"});
  wrong([](MlpTensors& t) { t.probs.dtype = Dtype::BF16; }, {"probs", "BF16", "F32"});
  tensors_ = right;
  splits_ = {4, 0, 9};
  expect_refused({"4 + 9 rows; there are 12"});
  splits_ = {4, -1, 5};
  expect_refused({"split 1 is -1"});
}

TEST_F(GroupedMlpInto, BuffersThatOverlapAnInputAreRefused) {
  const auto slug_at = [&](std::byte* data) {
    TensorView out = buffer_;
    out.data = data;
    return slug_of([&] { run(&out); });
  };
  std::vector<std::byte> both(2 * x_.size());
  std::copy(x_.begin(), x_.end(), both.begin());
  tensors_.x.data = both.data();
  EXPECT_EQ(slug_at(both.data()), "usage");
  EXPECT_EQ(slug_at(both.data() + x_.size() - 2), "usage");
  EXPECT_EQ(slug_at(both.data() + x_.size()), "none");
}

}  // namespace
}  // namespace glu_ckpt
