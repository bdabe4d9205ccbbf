#pragma once
/// Tests that hold on the real disk and in a MemorySystem alike. Each has an empty directory of its own.

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "io/file.hpp"
#include "support/memory_system.hpp"

namespace glu_ckpt {

inline void put_text(const std::filesystem::path& path, std::string_view text) {
  (void)remove_own(path, Own::MadeHere);
  File::create(path).pwrite_exact(std::as_bytes(std::span(text)), 0);
}

inline std::string get_text(const std::filesystem::path& path) {
  return read_small_file(path, i64{1} << 30, ErrorCode::Io);
}

enum class On { Disk, Memory };

class BothSystems : public testing::TestWithParam<On> {
 protected:
  BothSystems() {
    if (GetParam() == On::Memory) {
      scope_.emplace(memory_);
      dir_ = "/test";
      make_directory(dir_);
    } else {
      std::string pattern = (std::filesystem::path(testing::TempDir()) / "both_systems_XXXXXX").string();
      dir_ = ::mkdtemp(pattern.data());
    }
  }
  ~BothSystems() override {
    if (GetParam() == On::Disk) std::filesystem::remove_all(dir_);
  }

  void make_symlink(const std::string& target, const std::filesystem::path& path) {
    if (GetParam() == On::Memory)
      memory_.make_symlink(target, path);
    else
      std::filesystem::create_symlink(target, path);
  }

  MemorySystem memory_;
  std::optional<SystemCallsScope> scope_;
  std::filesystem::path dir_;
};

inline std::string name_of_system(const testing::TestParamInfo<On>& info) {
  return info.param == On::Disk ? "Disk" : "Memory";
}

#define GLU_CKPT_ON_BOTH(suite) \
  INSTANTIATE_TEST_SUITE_P(On, suite, testing::Values(On::Disk, On::Memory), name_of_system)

}  // namespace glu_ckpt
