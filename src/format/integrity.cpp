#include "format/manifest.hpp"

// libcrypto's SHA-256 itself. The functions in front of it (EVP) read OpenSSL's configuration and load the providers
// that it names as shared libraries, which a program without shared libraries cannot do.
#define OPENSSL_SUPPRESS_DEPRECATED
#include <openssl/sha.h>

#include <algorithm>
#include <array>

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
  SHA256_CTX state;
  require(SHA256_Init(&state), path);
  for_each_block(File::open_read(path), [&](std::span<const std::byte> block, i64) {
    require(SHA256_Update(&state, block.data(), block.size()), path);
  });
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest{};
  require(SHA256_Final(digest.data(), &state), path);
  std::string hex;
  for (const unsigned char byte : digest) hex += fmt::format("{:02x}", byte);
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
