/// Checkpoints that torch 2.15 and Megatron wrote, against the same tensors as safetensors.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <fstream>

#include "format/checkpoint_files.hpp"
#include "format/dcp_metadata.hpp"
#include "glu_ckpt/error.hpp"
#include "io/file.hpp"
#include "support/slug_of.hpp"

namespace glu_ckpt {
namespace {

namespace fs = std::filesystem;

fs::path testdata(const std::string& name) { return fs::path(std::getenv("GLU_CKPT_TESTDATA")) / name; }

std::unique_ptr<Source> open_dist(const fs::path& path) {
  CheckpointFiles files;
  files.format = Format::TorchDist;
  files.path = path;
  files.directory = path;
  return read_torch_dist(files);
}

const TensorRef* find(const Source& source, const std::string& name) {
  const auto& tensors = source.inventory().tensors;
  const auto at = std::ranges::find_if(tensors, [&](const TensorRef& tensor) { return tensor.name == name; });
  return at == tensors.end() ? nullptr : &*at;
}

std::size_t number_of(const Source& source, const TensorRef* tensor) {
  return static_cast<std::size_t>(tensor - source.inventory().tensors.data());
}

std::vector<std::byte> read_all(const Source& source, std::size_t tensor) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(source.inventory().tensors[tensor].bytes));
  source.read(tensor, 0, bytes);
  return bytes;
}

/// The same in reads of an odd length, from the back.
std::vector<std::byte> read_oddly(const Source& source, std::size_t tensor) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(source.inventory().tensors[tensor].bytes));
  constexpr std::size_t kStep = 997;
  for (std::size_t end = bytes.size(); end > 0;) {
    const std::size_t begin = end > kStep ? end - kStep : 0;
    source.read(tensor, static_cast<i64>(begin), std::span(bytes).subspan(begin, end - begin));
    end = begin;
  }
  return bytes;
}

/// Returns how many tensors of `truth` the checkpoint has; those are compared.
std::size_t compare(const Source& source, const Source& truth) {
  std::size_t same = 0;
  for (std::size_t i = 0; i < truth.inventory().tensors.size(); ++i) {
    const TensorRef& want = truth.inventory().tensors[i];
    const TensorRef* have = find(source, want.name);
    if (have == nullptr) continue;
    EXPECT_EQ(have->dtype, want.dtype) << want.name;
    EXPECT_EQ(have->shape, want.shape) << want.name;
    EXPECT_EQ(have->bytes, want.bytes) << want.name;
    const auto bytes = read_all(truth, i);
    EXPECT_EQ(read_all(source, number_of(source, have)), bytes) << want.name;
    EXPECT_EQ(read_oddly(source, number_of(source, have)), bytes) << want.name;
    ++same;
  }
  return same;
}

TEST(DcpSource, ReadsWhatTorchSaved) {
  const auto source = open_dist(testdata("torch/dcp1"));
  const auto truth = open_source(testdata("torch/full.safetensors"));
  EXPECT_EQ(source->format(), Format::TorchDist);
  EXPECT_EQ(source->inventory().tensors.size() + source->structure().objects.size(), 55U);
  EXPECT_EQ(compare(*source, *truth), truth->inventory().tensors.size());
}

TEST(DcpSource, ReadsWhatMegatronSavedFromTwoRanks) {
  const auto source = open_dist(testdata("megatron/ep2/iter_0000100"));
  const auto truth = open_source(testdata("megatron/ep2/truth.safetensors"));
  EXPECT_EQ(compare(*source, *truth), truth->inventory().tensors.size());
  EXPECT_EQ(source->structure().metadata_json.size(), 63U);
  EXPECT_FALSE(source->structure().has_integrity);
}

}  // namespace
}  // namespace glu_ckpt
