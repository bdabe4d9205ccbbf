/// Opens every broken checkpoint of testdata/malformed/format and compares the error with the manifest.

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "glu_ckpt/checkpoint.hpp"
#include "glu_ckpt/error.hpp"

namespace glu_ckpt {
namespace {

namespace fs = std::filesystem;

struct Case {
  std::string path;
  std::string slug;
  int status = 0;
};

/// The build makes it; GLU_CKPT_GALLERIES says where.
fs::path gallery() {
  const char* galleries = std::getenv("GLU_CKPT_GALLERIES");
  return fs::path(galleries == nullptr ? "build-gcc/tests/galleries" : galleries) / "format";
}

std::vector<Case> read_manifest() {
  std::ifstream manifest(gallery() / "manifest.tsv");
  std::vector<Case> cases;
  for (std::string line; std::getline(manifest, line);) {
    std::istringstream fields(line);
    Case item;
    std::getline(fields, item.path, '\t');
    std::getline(fields, item.slug, '\t');
    fields >> item.status;
    cases.push_back(item);
  }
  return cases;
}

/// Cases that no byte of a file is to blame for.
const std::map<std::string, std::string> kNoByte = {
    {"no_checkpoint", "files that are not there"},
    {"other_format", "files of another kind"},
};

/// "FILE: ", and "byte N" of it or of a file that is named next; N is one of the file's bytes or its end.
void expect_place(const Case& item, const Error& error) {
  const std::string message = error.what();
  EXPECT_TRUE(message.starts_with(error.file() + ": ")) << message;
  EXPECT_TRUE(fs::exists(error.file())) << message;
  const std::size_t at = message.find("byte ");
  EXPECT_EQ(at == std::string::npos, kNoByte.contains(item.path)) << message;
  if (at != error.file().size() + 2) return;
  EXPECT_LE(std::stoull(message.substr(at + 5)), fs::file_size(error.file())) << message;
}

TEST(FormatGallery, EveryCaseGivesItsError) {
  const auto cases = read_manifest();
  ASSERT_GT(cases.size(), 100u) << "run tests/galleries/make_galleries.py, and set GLU_CKPT_GALLERIES";
  for (const Case& item : cases) {
    SCOPED_TRACE(item.path);
    try {
      open_source(gallery() / item.path);
      ADD_FAILURE() << "opened, but should have failed as " << item.slug;
    } catch (const Error& error) {
      EXPECT_EQ(slug(error.code()), item.slug) << error.what();
      EXPECT_EQ(static_cast<int>(exit_status(error.code())), item.status);
      expect_place(item, error);
    }
  }
}

TEST(FormatGallery, ManifestListsEveryCase) {
  std::set<std::string> listed{"manifest.tsv"};
  for (const Case& item : read_manifest()) listed.insert(item.path);
  for (const auto& entry : fs::directory_iterator(gallery()))
    EXPECT_TRUE(listed.contains(entry.path().filename().string())) << entry.path();
}

}  // namespace
}  // namespace glu_ckpt
