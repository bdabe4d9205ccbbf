#pragma once
/// Models of testdata/whole and what tests of them do: read, change and write them, in a directory of the test's own.

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "glu_ckpt/convert.hpp"
#include "glu_ckpt/model.hpp"
#include "support/convert.hpp"
#include "support/stored_checkpoint.hpp"

namespace glu_ckpt::support {

using Tensors = std::vector<MemoryTensor>;

inline std::filesystem::path home_of(const std::string& family) {
  const char* path = std::getenv("GLU_CKPT_TESTDATA");
  return std::filesystem::path(path == nullptr ? "testdata" : path) / "whole" / family;
}

inline std::string read_text(const std::filesystem::path& file) {
  std::ostringstream text;
  text << std::ifstream(file, std::ios::binary).rdbuf();
  return text.str();
}

inline std::string digest_text(const std::filesystem::path& path, const SourceAnswers& answers = {}) {
  return to_string(digest(path, answers).digest);
}

inline ConvertOptions to_target(const std::string& target) {
  ConvertOptions options;
  options.target = target;
  return options;
}

/// What a user says about keys of Megatron-Core that nobody recorded anything of; nothing, of experts without a gate.
inline SourceAnswers contiguous_answers(bool gated = true) {
  SourceAnswers answers;
  if (gated) answers.glu = answers.shared_glu = contiguous();
  return answers;
}

inline MemoryTensor& find(Tensors& tensors, const std::string& name) {
  const auto found = std::ranges::find(tensors, name, &MemoryTensor::name);
  if (found == tensors.end()) throw std::logic_error("no tensor " + name);
  return *found;
}

class WholeModel : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string text = (std::filesystem::temp_directory_path() / "glu-ckpt-whole-XXXXXX").string();
    ASSERT_NE(mkdtemp(text.data()), nullptr);
    temp_ = text;
  }
  void TearDown() override { std::filesystem::remove_all(temp_); }

  std::filesystem::path temp_;
};

}  // namespace glu_ckpt::support
