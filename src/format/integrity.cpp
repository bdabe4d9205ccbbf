#include "format/integrity.hpp"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <memory>

#include "core/fail.hpp"
#include "core/json.hpp"
#include "core/parallel.hpp"
#include "format/output_format.hpp"
#include "io/file.hpp"

namespace glu_ckpt {
namespace fs = std::filesystem;
namespace {

void require(int done, const fs::path& path) {
  if (done != 1) fail(ErrorCode::Io, {path.string(), {}}, "{}: libcrypto cannot compute SHA-256", path.string());
}

}  // namespace

std::string sha256_of_file(const fs::path& path) {
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> state(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  require(state ? EVP_DigestInit_ex(state.get(), EVP_sha256(), nullptr) : 0, path);
  for_each_block(File::open_read(path), [&](std::span<const std::byte> block, i64) {
    require(EVP_DigestUpdate(state.get(), block.data(), block.size()), path);
  });
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int digest_bytes = 0;
  require(EVP_DigestFinal_ex(state.get(), digest.data(), &digest_bytes), path);
  std::string hex;
  for (unsigned int i = 0; i < digest_bytes; ++i) hex += fmt::format("{:02x}", digest[i]);
  return hex;
}

std::string print_integrity(const fs::path& root, const std::vector<std::string>& names) {
  std::vector<std::string> hashes(names.size());
  parallel_for(names.size(), kFileThreads, [&](std::size_t i, int) { hashes[i] = sha256_of_file(root / names[i]); });
  JsonWriter json;
  json.begin_object().field("algorithm", "sha256").key("files").begin_object();
  for (std::size_t i = 0; i < names.size(); ++i) json.field(names[i], hashes[i]);
  json.end_object().end_object();
  return json.text();
}

}  // namespace glu_ckpt
