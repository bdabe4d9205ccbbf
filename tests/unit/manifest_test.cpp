#include "format/manifest.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "support/slug_of.hpp"

namespace glu_ckpt {
namespace {

namespace fs = std::filesystem;

class Manifest : public testing::Test {
 protected:
  Manifest() {
    std::string pattern = (fs::path(testing::TempDir()) / "manifest_test_XXXXXX").string();
    dir_ = ::mkdtemp(pattern.data());
  }
  ~Manifest() override { fs::remove_all(dir_); }

  void write(const std::string& name, const std::string& text) const {
    fs::create_directories((dir_ / name).parent_path());
    std::ofstream(dir_ / name, std::ios::binary) << text;
  }

  std::vector<ManifestLine> parsed(const std::string& text) const {
    return parse_manifest(text, InputPart("manifest"));
  }

  fs::path dir_;
};

/// The hash is that of FIPS 180-4's example "abc".
constexpr std::string_view kAbc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

TEST_F(Manifest, NamesEveryFileButItself) {
  const std::vector<std::string> names = {"a b", "a\\b", "c\nd", "deep/er/e", "f\rg", "z"};
  for (const std::string& name : names) write(name, "abc");
  write("glu_ckpt.sha256", "anything");
  for (const std::string name : {"glu_ckpt.journal", "glu_ckpt.journal.1"}) write(name, "anything");
  i64 bytes = 0;
  const std::string text = print_manifest(dir_, [&](i64 more) { bytes += more; });
  EXPECT_EQ(bytes, 18);
  EXPECT_EQ(bytes, manifest_bytes(dir_, names));
  const auto lines = parsed(text);
  ASSERT_EQ(lines.size(), names.size());
  for (std::size_t i = 0; i < names.size(); ++i) {
    EXPECT_EQ(lines[i].name, names[i]);
    EXPECT_EQ(lines[i].sha256, kAbc);
  }
}

TEST_F(Manifest, FindsWhatChanged) {
  for (const std::string name : {"same", "other", "gone"}) write(name, "abc");
  write("glu_ckpt.sha256", print_manifest(dir_, {}));
  write("other", "abd");
  fs::remove(dir_ / "gone");
  for (const std::string name : {"new", "deep/.metadata", ".cache/new", ".new", "glu_ckpt.journal"}) write(name, "abc");
  for (const ManifestUse use : {ManifestUse::Optional, ManifestUse::Required}) {
    std::vector<std::pair<std::string, FileState>> found;
    for (const CheckedFile& file : check_manifest(dir_, use, {})) found.emplace_back(file.name, file.state);
    const FileState more = use == ManifestUse::Required ? FileState::Unlisted : FileState::NoChecksum;
    const std::vector<std::pair<std::string, FileState>> expected = {{"gone", FileState::Missing},
                                                                     {"other", FileState::Differs},
                                                                     {"same", FileState::Ok},
                                                                     {".cache/new", FileState::NoChecksum},
                                                                     {".new", FileState::NoChecksum},
                                                                     {"deep/.metadata", more},
                                                                     {"new", more}};
    EXPECT_EQ(found, expected);
  }
}

TEST_F(Manifest, TakesWhatSha256sumPrintsAlone) {
  const std::string hash(kAbc);
  EXPECT_EQ(parsed(hash + " *binary\n").at(0).name, "binary");
  EXPECT_EQ(parsed(hash + "  no newline").at(0).name, "no newline");
  for (const std::string& text :
       {std::string("\n"), hash + "\n", hash + "  \n", hash + " x\n", hash.substr(1) + "   x\n",
        "A" + hash.substr(1) + "  x\n", hash + "  ../x\n", hash + "  /x\n", hash + "  a/../../x\n"})
    EXPECT_EQ(slug_of([&] { (void)parsed(text); }), "record-invalid") << text;
}

}  // namespace
}  // namespace glu_ckpt
